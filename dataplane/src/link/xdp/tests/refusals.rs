//! What cannot be opened, and why.

use super::world::{V4, V6, device, index};
use crate::link::xdp::error::XdpOpenError;
use crate::link::xdp::socket::{self, Place, Sizes, Wishes};
use crate::link::xdp::umem::Umem;
use crate::link::xdp::{XdpConfig, XdpDevice};
use std::net::IpAddr;
use trunkline_testkit::netns::{beside_a_neighbour, ip};

const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const IPC_LOCK: u32 = 14;
const BPF: u32 = 39;
const LAST: u32 = 40;

/// Takes a capability from this thread (capset(2)).
fn give_up(capability: u32) {
    #[repr(C)]
    struct Header {
        version: u32,
        process: i32,
    }
    let mut header = Header {
        version: 0x2008_0522,
        process: 0,
    };
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: both lead to what version 3 has: a header, and twice three sets.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, &raw mut sets) };
    assert_eq!(got, 0);
    sets[capability as usize / 32][0] &= !(1 << (capability % 32));
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, &raw mut sets) };
    assert_eq!(set, 0);
}

fn near() -> XdpConfig {
    XdpConfig::new(index("near"), V4.0.parse().unwrap())
}

fn refusal(config: &XdpConfig) -> XdpOpenError {
    let error = XdpDevice::open(config).unwrap_err();
    println!("{error}");
    error
}

#[test]
fn a_device_goes_to_another_thread() {
    fn goes<T: Send>() {}
    goes::<XdpDevice>();
}

#[test]
fn values_out_of_range_are_refused() {
    let good = XdpConfig::new(1, IpAddr::from([127, 0, 0, 1]));
    let few = XdpConfig { frames: 15, ..good };
    let many = XdpConfig {
        send_frames: 1 << 15,
        ..good
    };
    let queue = XdpConfig {
        queue: u32::MAX,
        ..good
    };
    for (config, name) in [(few, "frames"), (many, "send_frames"), (queue, "queue")] {
        let error = refusal(&config);
        assert!(matches!(error, XdpOpenError::OutOfRange { field, .. } if field == name));
    }
    let other = XdpConfig {
        address: IpAddr::from([127, 0, 0, 2]),
        queue: 1,
        ..good
    };
    for group in [[good, good], [good, other]] {
        let error = XdpDevice::open_group(&group).unwrap_err();
        assert!(matches!(error, XdpOpenError::Mixed));
    }
    for address in ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1"] {
        let error = refusal(&XdpConfig {
            address: address.parse().unwrap(),
            ..good
        });
        assert!(matches!(error, XdpOpenError::NotOneHost { .. }));
    }
    assert!(XdpDevice::open_group(&[]).unwrap().is_empty());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn interfaces_and_queues_that_are_not_there_are_named() {
    beside_a_neighbour(|_| {
        for interface in [0, 12_345, u32::MAX] {
            let error = refusal(&XdpConfig {
                interface,
                ..near()
            });
            let same =
                matches!(error, XdpOpenError::NoInterface { interface: of } if of == interface);
            assert!(same, "{error}");
        }
        let error = refusal(&XdpConfig { queue: 7, ..near() });
        assert!(
            matches!(error, XdpOpenError::NoSuchQueue { queue: 7, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("ethtool -l near"), "{error}");
        assert!(!ip("link show near").contains("xdp"), "nothing is left");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn what_is_taken_is_told_from_what_is_not_there() {
    beside_a_neighbour(|far| {
        let open = device(far, V4.0);
        let error = refusal(&XdpConfig::new(index("near"), V6.0.parse().unwrap()));
        assert!(
            matches!(error, XdpOpenError::ProgramTaken { .. }),
            "{error}"
        );
        let said = error.to_string();
        assert!(said.starts_with("interface near has"), "{said}");
        assert!(said.contains("ip link set near xdp off"), "{said}");
        drop(open);
        // A socket without a program.
        let umem = Umem::new(64).unwrap();
        let (receive, send) = (32, 32);
        let (stranger, _rings) = socket::open(&umem, Sizes { receive, send }).unwrap();
        let wishes = Wishes {
            zero_copy: true,
            multi_buffer: true,
            no_single: false,
        };
        // The driver of these links copies, and refuses to do without.
        let bound = socket::bind(&stranger, &Place::of(index("near")).unwrap(), 0, wishes).unwrap();
        assert!(!bound.zero_copy && bound.multi_buffer);
        let error = refusal(&near());
        assert!(
            matches!(error, XdpOpenError::QueueTaken { queue: 0, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("of interface near"), "{error}");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn missing_privileges_are_named() {
    beside_a_neighbour(|_| {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: leads to an `rlimit`.
        let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
        assert_eq!(got, 0);
        let config = XdpConfig {
            frames: 1 << 16,
            ..near()
        };
        give_up(IPC_LOCK);
        if limit.rlim_cur < 64 << 20 {
            let error = refusal(&config);
            assert!(
                matches!(error, XdpOpenError::LockedMemory { .. }),
                "{error}"
            );
        }
        give_up(NET_RAW);
        let error = refusal(&near());
        assert!(matches!(error, XdpOpenError::NoPrivilege { .. }), "{error}");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn no_more_privileges_are_needed_than_are_named() {
    beside_a_neighbour(|_| {
        let needed = [NET_ADMIN, NET_RAW, IPC_LOCK, BPF];
        let others = (0..=LAST).filter(|capability| !needed.contains(capability));
        others.for_each(give_up);
        drop(XdpDevice::open(&near()).unwrap());
        give_up(BPF);
        let error = refusal(&near());
        assert!(matches!(error, XdpOpenError::NoPrivilege { .. }), "{error}");
    });
}
