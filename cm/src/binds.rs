//! BINDs that a REQ brings along, and the consent to them in the REP: entries of `SRC_CONTROL` that
//! come early. 14 bytes each, big-endian, behind a count in byte 43 of the private data:
//!
//! ```text
//! BIND:  | source QP 3 | destination QP 3 | generation 4 | reserved 4 |
//! BOUND: | source QP 3 | destination QP 3 | generation 4 | own generation 4 |
//! ```

use crate::bytes::{get, put, u24_at, u32_at};
use crate::hello::{HelloError, invalid};
use trunkline_wire::{Control, ControlKind, Qpn};

const COUNT_AT: usize = 43;
const ENTRIES_AT: usize = 44;
const LEN: usize = 14;

/// Asks to bind a pair of QPs to the connection: the source QP is in its first round.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Bind {
    /// QP of the asking node.
    pub src_qp: Qpn,
    /// QP of the asked node.
    pub dest_qp: Qpn,
    /// Incarnation of the source QP.
    pub generation: u32,
}

/// Agrees to a BIND. It is the BIND of the QP that agrees, too: of `own_generation`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Bound {
    /// QP of the node that agrees.
    pub src_qp: Qpn,
    /// QP of the node that asked.
    pub dest_qp: Qpn,
    /// Incarnation of the QP that asked.
    pub generation: u32,
    /// Incarnation of the QP that agrees.
    pub own_generation: u32,
}

/// Something of which a REQ or REP carries a few.
pub trait Entry: Copy + Default {
    /// What it is called in errors.
    const NAME: &'static str;

    /// From the wire.
    fn parse(bytes: &[u8; 14]) -> Self;

    /// To the wire.
    fn emit(self) -> [u8; 14];
}

/// Up to [`Few::MOST`] entries.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Few<T> {
    // INVARIANT: at most MOST; entries behind are the default, so that equality is that of slices.
    len: u8,
    entries: [T; 3],
}

/// BINDs of a REQ.
pub type Binds = Few<Bind>;
/// BOUNDs of a REP.
pub type Bounds = Few<Bound>;

impl<T: Entry> Few<T> {
    /// As many as a REQ has room for.
    pub const MOST: usize = 3;

    /// The entries.
    pub fn as_slice(&self) -> &[T] {
        &self.entries[..usize::from(self.len)]
    }

    /// All but those that are `gone`.
    pub(crate) fn without(&self, gone: impl Fn(&T) -> bool) -> Self {
        let entries = self.as_slice().iter().copied();
        entries.filter(|entry| !gone(entry)).collect()
    }

    pub(crate) fn parse<const N: usize>(bytes: &[u8; N]) -> Result<Self, HelloError> {
        let count = bytes[COUNT_AT];
        if usize::from(count) > Self::MOST {
            return invalid(T::NAME, count.into());
        }
        let entry = |at| T::parse(&get(bytes, ENTRIES_AT + usize::from(at) * LEN));
        Ok((0..count).map(entry).collect())
    }

    pub(crate) fn emit(&self, out: &mut [u8]) {
        put(out, COUNT_AT, [self.len]);
        for (i, entry) in self.as_slice().iter().enumerate() {
            put(out, ENTRIES_AT + i * LEN, entry.emit());
        }
    }
}

impl Bounds {
    /// Consent to those of a peer's BINDs that come from where ours lead, and lead to where ours
    /// come from: both ends have asked.
    pub(crate) fn mutual(ours: &Binds, theirs: &Binds) -> Self {
        let agree = |bind: &Bind| {
            let pair = |own: &&Bind| (own.src_qp, own.dest_qp) == (bind.dest_qp, bind.src_qp);
            ours.as_slice().iter().find(pair).map(|own| Bound {
                src_qp: own.src_qp,
                dest_qp: own.dest_qp,
                generation: bind.generation,
                own_generation: own.generation,
            })
        };
        theirs.as_slice().iter().filter_map(agree).collect()
    }
}

impl Bound {
    /// The BIND that it is, too.
    pub const fn bind(self) -> Bind {
        Bind {
            src_qp: self.src_qp,
            dest_qp: self.dest_qp,
            generation: self.own_generation,
        }
    }
}

impl<T: Entry> FromIterator<T> for Few<T> {
    /// Takes what fits, from the front.
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut taken = Self::default();
        for (place, entry) in taken.entries.iter_mut().zip(entries) {
            *place = entry;
            taken.len += 1;
        }
        taken
    }
}

impl Entry for Bind {
    const NAME: &'static str = "BINDs";

    fn parse(bytes: &[u8; LEN]) -> Self {
        let (src_qp, dest_qp, generation) = pair_of(bytes);
        Self {
            src_qp,
            dest_qp,
            generation,
        }
    }

    fn emit(self) -> [u8; LEN] {
        pair(self.src_qp, self.dest_qp, self.generation)
    }
}

impl Entry for Bound {
    const NAME: &'static str = "BOUNDs";

    fn parse(bytes: &[u8; LEN]) -> Self {
        let (src_qp, dest_qp, generation) = pair_of(bytes);
        Self {
            src_qp,
            dest_qp,
            generation,
            own_generation: u32_at(bytes, 10),
        }
    }

    fn emit(self) -> [u8; LEN] {
        let mut out = pair(self.src_qp, self.dest_qp, self.generation);
        put(&mut out, 10, self.own_generation.to_be_bytes());
        out
    }
}

/// What both have in common, from the wire.
fn pair_of(bytes: &[u8; LEN]) -> (Qpn, Qpn, u32) {
    (
        Qpn::from_wire(u24_at(bytes, 0)),
        Qpn::from_wire(u24_at(bytes, 3)),
        u32_at(bytes, 6),
    )
}

/// And to it.
fn pair(src_qp: Qpn, dest_qp: Qpn, generation: u32) -> [u8; LEN] {
    let mut out = [0; LEN];
    let [_, s0, s1, s2] = src_qp.get().to_be_bytes();
    let [_, d0, d1, d2] = dest_qp.get().to_be_bytes();
    put(&mut out, 0, [s0, s1, s2, d0, d1, d2]);
    put(&mut out, 6, generation.to_be_bytes());
    out
}

impl From<Control> for Bind {
    /// Of an entry that is a BIND of a QP that has begun nothing, in its first round.
    fn from(entry: Control) -> Self {
        Self {
            src_qp: entry.src_qp,
            dest_qp: entry.dest_qp,
            generation: entry.generation,
        }
    }
}

impl From<Control> for Bound {
    /// Of an entry that is a BOUND.
    fn from(entry: Control) -> Self {
        Self {
            src_qp: entry.src_qp,
            dest_qp: entry.dest_qp,
            generation: entry.generation,
            own_generation: entry.status,
        }
    }
}

impl From<Bind> for Control {
    fn from(bind: Bind) -> Self {
        Self {
            kind: ControlKind::Bind,
            src_qp: bind.src_qp,
            replay_epoch: 0,
            dest_qp: bind.dest_qp,
            generation: bind.generation,
            status: 0,
            msn: 0,
        }
    }
}

impl From<Bound> for Control {
    fn from(bound: Bound) -> Self {
        Self {
            kind: ControlKind::Bound,
            src_qp: bound.src_qp,
            replay_epoch: 0,
            dest_qp: bound.dest_qp,
            generation: bound.generation,
            status: bound.own_generation,
            msn: 0,
        }
    }
}
