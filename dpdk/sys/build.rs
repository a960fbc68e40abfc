//! Finds libdpdk, and compiles the shim with what its headers ask for.

use std::process::ExitCode;

/// The oldest version whose interfaces the shim uses.
const LEAST: &str = "22.11";
/// The driver of rings, which the shim calls itself.
const RING_DRIVER: &str = "rte_net_ring";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=c/shim.c");
    println!("cargo::rerun-if-changed=c/shim.h");
    println!("cargo::rerun-if-changed=c/dma.c");
    println!("cargo::rerun-if-changed=c/dma.h");
    let found = pkg_config::Config::new()
        .atleast_version(LEAST)
        .cargo_metadata(false)
        .probe("libdpdk");
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            eprintln!(
                "error: ports of DPDK take libdpdk {LEAST} or later with its headers, and \
                 pkg-config does not find it.\n\
                 help: `apt install libdpdk-dev pkg-config` (Debian, Ubuntu), `dnf install \
                 dpdk-devel` (Fedora); for a DPDK of your own, PKG_CONFIG_PATH says where its \
                 libdpdk.pc is.\n\n{error}"
            );
            return ExitCode::FAILURE;
        }
    };
    // `-march` and `-include rte_config.h` are no paths and no definitions: only pkg-config itself
    // tells of them.
    let flags = flags();
    let mut build = cc::Build::new();
    build.files(["c/shim.c", "c/dma.c"]);
    build.includes(&found.include_paths);
    build.warnings(true).extra_warnings(true).opt_level(3);
    for words in &flags {
        build.flag(words);
    }
    build.compile("trunkline_dpdk_shim");
    // Of the many libraries, those that the shim calls.
    for path in &found.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for library in [
        "rte_ethdev",
        "rte_dmadev",
        "rte_mempool",
        "rte_mbuf",
        "rte_ring",
        "rte_eal",
        RING_DRIVER,
    ] {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    ExitCode::SUCCESS
}

/// The flags for compilers that pkg-config gives and that its crate does not tell of.
fn flags() -> Vec<String> {
    let output = std::process::Command::new("pkg-config")
        .args(["--cflags-only-other", "libdpdk"])
        .output();
    let Ok(output) = output else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().map(ToOwned::to_owned).collect()
}
