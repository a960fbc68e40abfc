//! Why a port of DPDK could not be opened.

use std::io;
use std::net::IpAddr;
use trunkline_dataplane::LinkOpenError;
use trunkline_dpdk_eal::{self as eal, EalError};

/// Most lines that a driver logged which get into an error.
const LINES: usize = 3;

/// Why a port of DPDK could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkOpenError {
    /// There is no environment of DPDK.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// A call of DPDK failed.
    #[error("{device}: {call}: {said}{}", remedy(call, *code))]
    Call {
        /// The device.
        device: String,
        /// What was called.
        call: &'static str,
        /// The negative errno that it gave.
        code: i32,
        /// What it and its driver said.
        said: String,
    },
    /// A port of this process has the device.
    #[error("{device} is open in this process already: give this one another name")]
    Taken {
        /// The device.
        device: String,
    },
    /// Both ends of a memif cannot meet there.
    #[error("{device} cannot use the socket {path}: {why}")]
    Socket {
        /// The device.
        device: String,
        /// The path or the name of its socket.
        path: String,
        /// What is wrong, and what helps.
        why: String,
    },
    /// This process may not open as many descriptors as the driver does.
    #[error(
        "{device} takes {needed} descriptors, and this process may have {free} more: ulimit -n, or \
         LimitNOFILE= of a systemd unit, allows it more"
    )]
    Descriptors {
        /// The device.
        device: String,
        /// How many it takes.
        needed: usize,
        /// How many there are.
        free: usize,
    },
    /// Another node has the interface by AF_XDP: its driver would take the frames from it, and
    /// leave none to either in the end.
    #[error("a node has all frames of {interface} already: end it, or use another interface")]
    InterfaceTaken {
        /// The interface.
        interface: String,
    },
    /// The driver has fewer queues than the node has workers.
    #[error(
        "{device} has {queues} queues, and the node {workers} workers: give it --workers {queues}"
    )]
    Queues {
        /// The device.
        device: String,
        /// Its queues.
        queues: u16,
        /// The node's workers.
        workers: u8,
    },
    /// The driver carries no such frames.
    #[error("{device} carries packets of up to {most} bytes, not of {mtu}: {remedy}")]
    Mtu {
        /// The device.
        device: String,
        /// The MTU that is wanted.
        mtu: u32,
        /// The largest that it has.
        most: u32,
        /// What helps.
        remedy: String,
    },
    /// Nothing says how many bits of the address neighbours share.
    #[error("{device} does not know which hosts are at its link: say prefix=N, as prefix=24")]
    Prefix {
        /// The device.
        device: String,
    },
    /// Only devices that have a network of their own carry the address.
    #[error(
        "{address} is not an address of this machine: devices of its interfaces cannot have it, as \
         net_af_packet, and whether others can shows when they are opened, as net_memif, or a card \
         with prefix=N"
    )]
    Foreign {
        /// The address.
        address: IpAddr,
    },
    /// A prefix is longer than an address.
    #[error("{address} has no prefix of {prefix} bits")]
    PrefixTooLong {
        /// The address.
        address: IpAddr,
        /// The prefix.
        prefix: u8,
    },
    /// The other end of a ring was opened otherwise.
    #[error("the other end of {device} has {what}: give both the same")]
    OtherEnd {
        /// The device.
        device: String,
        /// What is different.
        what: String,
    },
    /// The address is on another interface.
    #[error("{address} is an address of {interface}, and {device} is on another interface")]
    OtherInterface {
        /// The address.
        address: IpAddr,
        /// The interface that has it.
        interface: String,
        /// The device.
        device: String,
    },
    /// The address cannot be had.
    #[error(transparent)]
    Link(#[from] LinkOpenError),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What it was asked for.
        what: String,
        /// What it said.
        source: io::Error,
    },
}

impl DpdkOpenError {
    /// What the system said of an interface.
    pub(crate) fn of_interface(name: &str, source: io::Error) -> Self {
        let what = format!("interface {name}");
        Self::System { what, source }
    }

    /// Of a call that gave a negative errno, with what drivers have logged since.
    pub(crate) fn of_call(device: &str, call: &'static str, code: i32) -> Self {
        let text = eal::error_text(code);
        let logged = eal::log();
        let logged = logged
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let logged: Vec<_> = logged.collect();
        let last = &logged[logged.len().saturating_sub(LINES)..];
        let said = [text.as_str()].into_iter().chain(last.iter().copied());
        Self::Call {
            device: device.to_owned(),
            call,
            code,
            said: said.collect::<Vec<_>>().join("; "),
        }
    }
}

fn is_root() -> bool {
    // SAFETY: reads an id of this process.
    unsafe { libc::geteuid() == 0 }
}

/// What helps, where that is known.
fn remedy(call: &str, code: i32) -> &'static str {
    match (call, -code) {
        ("rte_dev_probe", libc::ENODEV | libc::ENOENT | libc::EFAULT) => {
            " (its driver is missing, or the device: see `dpdk-devbind.py --status`, and the \
             librte-net-* packages)"
        }
        // Drivers say so of much that is no matter of privilege.
        (_, libc::EPERM | libc::EACCES) if is_root() => {
            " (its arguments may be wrong, a capability missing, as CAP_NET_RAW and CAP_NET_ADMIN \
             are in containers, or a limit of this process too small, as `ulimit -l`)"
        }
        (_, libc::EPERM | libc::EACCES) => " (run as root)",
        ("rte_eth_rx_queue_setup", libc::EINVAL) => {
            " (net_af_xdp takes root with CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN, memory \
             that may be locked, as `ulimit -l` says, and a queue that the interface has)"
        }
        (_, libc::ENOMEM) => " (more memory: `-- -m 1024`)",
        _ => "",
    }
}
