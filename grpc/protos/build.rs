//! Generates messages, clients and servers, as any program does that speaks gRPC.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["proto/echo.proto", "proto/greeter.proto"];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let parsed = protox::compile(files, ["proto"])?;
    Ok(tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(parsed)?)
}
