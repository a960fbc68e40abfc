//! The `trunkline` command, which knows ports of DPDK, too.

use std::process::ExitCode;
use trunkline::PortKind;

fn main() -> ExitCode {
    PortKind::add_family(&trunkline_dpdk::Family);
    trunkline_cli::main()
}
