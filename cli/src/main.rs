//! The `trunkline` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    trunkline_cli::main()
}
