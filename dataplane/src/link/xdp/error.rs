//! Why a device could not be opened, and what its user may do.

use crate::udp::InterfaceName;
use std::io;
use std::net::IpAddr;

/// Why an [`XdpDevice`](super::XdpDevice) could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpOpenError {
    /// A value of the configuration is outside its range.
    #[error("{field} is {value}, not in {least} ..= {most}")]
    OutOfRange {
        /// The field of [`XdpConfig`](super::XdpConfig).
        field: &'static str,
        /// Its value.
        value: usize,
        /// Least allowed.
        least: usize,
        /// Most allowed.
        most: usize,
    },
    /// Many may have the address, or everybody: packets cannot come from it.
    #[error("{address} is no address of one host: give one that the interface has")]
    NotOneHost {
        /// The address.
        address: IpAddr,
    },
    /// One program serves a group: its devices differ in what that program has only one of, or do
    /// not differ in the queue.
    #[error("the devices of a group have one interface, one address, and a queue each")]
    Mixed,
    /// No interface has the number.
    #[error("there is no interface {interface} here: look at `ip link`")]
    NoInterface {
        /// The number.
        interface: u32,
    },
    /// The process may not do this.
    #[error("{call} takes privileges: run as root, or with CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF")]
    NoPrivilege {
        /// What was refused.
        call: &'static str,
    },
    /// The kernel was built without, or is too old.
    #[error(
        "the kernel does not know {call}: use Linux 5.9 or later, with CONFIG_XDP_SOCKETS and \
         CONFIG_BPF_SYSCALL, or a port of another kind"
    )]
    NoXdp {
        /// What it does not know.
        call: &'static str,
    },
    /// Neither the driver nor the kernel above it runs a program for the interface.
    #[error("interface {interface} takes no XDP program ({source}): use a port of another kind")]
    NoProgram {
        /// The interface.
        interface: InterfaceName,
        /// What the system said.
        source: io::Error,
    },
    /// Another program steers the interface's packets.
    #[error(
        "interface {interface} has an XDP program already: end who attached it, as another node of \
         this process may have, or remove it by \
         `ip link set {interface} xdp off`"
    )]
    ProgramTaken {
        /// The interface.
        interface: InterfaceName,
    },
    /// Another socket has the queue.
    #[error(
        "queue {queue} of interface {interface} has an AF_XDP socket already: close it, or take \
         another queue (`ss --xdp` shows them)"
    )]
    QueueTaken {
        /// The interface.
        interface: InterfaceName,
        /// The queue.
        queue: u32,
    },
    /// The interface has fewer queues.
    #[error(
        "interface {interface} has no queue {queue}: `ethtool -l {interface}` shows what it has"
    )]
    NoSuchQueue {
        /// The interface.
        interface: InterfaceName,
        /// The queue.
        queue: u32,
    },
    /// Frames may be longer than one buffer, and kernel or driver cannot spread them over several.
    #[error(
        "interface {interface} has an MTU of {mtu}, which takes frames of several buffers, and the \
         kernel refuses those: lower it by `ip link set {interface} mtu {most}`, or use Linux 6.6 \
         or later"
    )]
    MtuTooLarge {
        /// The interface.
        interface: InterfaceName,
        /// The interface's MTU.
        mtu: usize,
        /// The largest that one buffer holds.
        most: usize,
    },
    /// The kernel may not keep so much memory in place for the process.
    #[error(
        "{bytes} bytes of memory may not be locked: raise `ulimit -l`, add CAP_IPC_LOCK, or lower \
         `frames` and `send_frames`"
    )]
    LockedMemory {
        /// How much was to be locked.
        bytes: usize,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl XdpOpenError {
    /// What a failed call comes to where nothing more is known of it.
    pub(super) fn of(call: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPrivilege { call },
            Some(libc::ENOSYS | libc::EAFNOSUPPORT | libc::ENOPROTOOPT) => Self::NoXdp { call },
            _ => Self::System { call, source },
        }
    }
}
