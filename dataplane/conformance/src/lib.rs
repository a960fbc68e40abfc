//! What every port between two hosts does: one suite, for each kind of port against each other
//! kind, between two network namespaces. Crates that bring a kind of port name it by a [`Suite`],
//! and run all of it by [`conformance_tests!`].
//!
//! | module | what ports do |
//! | --- | --- |
//! | [`laws`] | for those who use them well |
//! | [`refusals`] | with what cannot be sent |
//! | [`interfaces`] | when its interface changes |
//! | [`arrivals`] | with what others send that is not for a node |

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

pub mod arrivals;
pub mod end;
pub mod interfaces;
pub mod kind;
pub mod laws;
pub mod refusals;

mod tests_of;

pub use end::{End, Got, pattern};
pub use kind::{Kind, Link, PACKET, Side, UDP, XDP};

use end::meet;
use std::net::IpAddr;
use std::time::Duration;
use trunkline_dataplane::Port;
use trunkline_testkit::netns::{Far, beside_a_neighbour, ip, run};

/// A port of any kind.
pub type AnyPort = Box<dyn Port + Send>;

/// Addresses of the near and of the far end, of both families.
pub const FAMILIES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]];

/// Longest that anything takes.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Which ports the suite is run with.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// Each way of joining two ends.
    pub pairs: &'static [[Kind; 2]],
    /// Kinds of ports, each once, whose other end is of the same kind.
    pub alike: &'static [Kind],
}

type Test = fn(&Far, [&mut End; 2]);

impl Suite {
    /// Runs `test` with ports at both ends of a link, for each pair of kinds and for both families.
    fn each_pair(&self, test: Test) {
        for kinds in self.pairs {
            on_a_link(*kinds, test);
        }
    }

    /// The same where both ends are of one kind.
    fn each_kind(&self, test: Test) {
        self.each_kind_on(&[Link::Kernels, Link::Taken, Link::Own], test);
    }

    /// The same for kinds of such links.
    fn each_kind_on(&self, links: &[Link], test: Test) {
        for kind in self.alike.iter().filter(|kind| links.contains(&kind.link)) {
            on_a_link([*kind, *kind], test);
        }
    }

    /// The same for each kind beside one that leaves its end of the link to the kernel.
    fn each_kind_beside_a_kernel(&self, test: Test) {
        for kind in self.alike {
            let pair = self.pairs.iter().find(|[near, far]| {
                near.name == kind.name && near.link != Link::Own && far.link == Link::Kernels
            });
            if let Some(kinds) = pair {
                on_a_link(*kinds, test);
            }
        }
    }
}

fn on_a_link(kinds: [Kind; 2], test: Test) {
    beside_a_neighbour(move |far| {
        let mtu = kinds[0].mtu.min(kinds[1].mtu);
        far.run(&format!("ip link set far mtu {mtu}"));
        ip(&format!("link set near mtu {mtu}"));
        if !kinds.iter().all(|kind| kind.parts_super_packets) {
            far.run("ethtool -K far tx-udp-segmentation off");
            run("ethtool -K near tx-udp-segmentation off");
        }
        for addresses in FAMILIES {
            println!("{} {} {addresses:?}", kinds[0].name, kinds[1].name);
            let [near_at, far_at] = addresses.map(|address| address.parse::<IpAddr>().unwrap());
            let port = kinds[0].open_at(Side::Near, near_at, far);
            let mut near = End::new(&kinds[0], port, near_at);
            let port = kinds[1].open_at(Side::Far, far_at, far);
            let mut other = End::new(&kinds[1], port, far_at);
            meet([&mut near, &mut other]);
            test(far, [&mut near, &mut other]);
        }
    });
}
