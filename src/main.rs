//! The `trunkline` command.

pub mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
