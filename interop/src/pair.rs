//! A pair of QPs: one here, one in the guest, connected by what they tell each other.

use crate::guest::{Guest, Options, Peer};
use crate::local::{Local, node};
use crate::station::{MARGIN, Station};
use anyhow::Result;
use std::net::IpAddr;
use std::time::Duration;
use trunkline::{Access, Attributes, Node, PortKind, Psn, QpType};
use trunkline_dataplane::fault::Faults;

/// First PSN of the guest: close to the end of the circle, so that numbers wrap.
const GUEST_PSN: Psn = Psn::from_wire(0xff_fff0);
/// `IBV_ACCESS_LOCAL_WRITE`, `_REMOTE_WRITE`, `_REMOTE_READ`, `_REMOTE_ATOMIC`, `_MW_BIND`.
const GUEST_ACCESS: u32 = 0x1f;
const QKEY: u32 = 0x1111_1111;

/// Who does something to whom.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    Us,
    Guest,
}

impl Way {
    pub(crate) const BOTH: [Self; 2] = [Self::Us, Self::Guest];

    /// For the names of tests.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Us => "to-guest",
            Self::Guest => "from-guest",
        }
    }
}

/// Address of a node, and what carries its packets.
pub(crate) type Ours = (IpAddr, &'static PortKind);

/// Where the two ends are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) guest: Guest,
    /// Where the guest's programs meet us over TCP.
    pub(crate) control: IpAddr,
    /// Where our QPs are.
    pub(crate) address: IpAddr,
    /// What carries their packets.
    pub(crate) port: &'static PortKind,
}

impl Place {
    /// What a node of ours is made of.
    pub(crate) const fn ours(&self) -> Ours {
        (self.address, self.port)
    }
}

/// What a pair is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) kind: QpType,
    pub(crate) mtu: u16,
    pub(crate) size: usize,
    pub(crate) depth: u32,
    pub(crate) rnr_retry: u8,
    pub(crate) retry_count: u8,
    /// Exponent of the ACK timeout.
    pub(crate) timeout: u8,
    /// Of what we send.
    pub(crate) faults: Option<Faults>,
}

impl Terms {
    pub(crate) const fn new(kind: QpType, mtu: u16, size: usize) -> Self {
        Self {
            kind,
            mtu,
            size,
            depth: 64,
            rnr_retry: 7,
            retry_count: 7,
            // 0.5 s: a guest that is emulated on a busy machine needs its time.
            timeout: 17,
            faults: None,
        }
    }
}

/// Both ends.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) ours: Local,
    pub(crate) guests: Peer,
    pub(crate) node: Node,
}

impl Pair {
    /// Opens both ends and takes them to RTS.
    pub(crate) fn open(place: Place, terms: &Terms) -> Result<Self> {
        let size = terms.size + MARGIN;
        let node = node(place.ours(), terms.faults)?;
        let mut ours = Local::new(&node, terms.kind, size, terms.depth)?;
        let mut guests = place.guest.open(&Options {
            kind: terms.kind,
            size,
            depth: terms.depth,
            access: GUEST_ACCESS,
            qkey: QKEY,
        })?;
        let attributes = Attributes {
            path_mtu: terms.mtu,
            timeout: terms.timeout,
            // 0.64 ms.
            min_rnr_timer: 12,
            retry_count: terms.retry_count,
            rnr_retry: terms.rnr_retry,
            qkey: QKEY,
            ..Attributes::default()
        };
        let (here, there) = (ours.qp.address(), guests.qp_address(GUEST_PSN)?);
        if terms.kind == QpType::Ud {
            guests.ready(here, GUEST_PSN, QKEY)?;
            ours.ready(there, &attributes)?;
        } else {
            let code = terms.mtu.ilog2() - 7;
            let words = format!(
                "{code} {} {} {} 12 16",
                terms.timeout, terms.retry_count, terms.rnr_retry
            );
            guests.connect(here, GUEST_PSN, &words)?;
            ours.qp.connect_with(there, Access::ALL, &attributes)?;
        }
        Ok(Self { ours, guests, node })
    }

    /// Who asks, and who is asked.
    pub(crate) fn sides(&mut self, from: Way) -> (&mut dyn Station, &mut dyn Station) {
        match from {
            Way::Us => (&mut self.ours, &mut self.guests),
            Way::Guest => (&mut self.guests, &mut self.ours),
        }
    }

    /// Lets packets settle that nobody waits for.
    pub(crate) fn settle(&self) {
        std::thread::sleep(Duration::from_millis(20));
    }
}
