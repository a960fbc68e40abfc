//! `trunkline-interop` on the ports that need no other libraries.

use std::process::ExitCode;

fn main() -> ExitCode {
    trunkline_interop::main()
}
