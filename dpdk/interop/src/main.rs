//! `trunkline-interop` with ports of DPDK among those that carry its packets.

use std::process::ExitCode;
use trunkline::PortKind;

fn main() -> ExitCode {
    PortKind::add_family(&trunkline_dpdk::Family);
    trunkline_interop::main()
}
