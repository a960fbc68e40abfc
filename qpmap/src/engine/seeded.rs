//! A path of packets with what follows from it: packets come and go in runs of one path.

use trunkline_wire::{Gid, IcrcSeed, Path};

/// The path of the last packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeded {
    path: Path,
    seed: IcrcSeed,
    source: Gid,
}

impl Seeded {
    pub(crate) fn new(path: Path) -> Self {
        Self {
            path,
            seed: IcrcSeed::new(&path),
            source: path.src.into(),
        }
    }

    /// Whether it is another than before.
    #[inline]
    pub(crate) fn turn_to(&mut self, path: &Path) -> bool {
        let other = self.path != *path;
        if other {
            *self = Self::new(*path);
        }
        other
    }

    #[inline]
    pub(crate) const fn path(&self) -> &Path {
        &self.path
    }

    /// What the ICRC of its packets begins with.
    #[inline]
    pub(crate) const fn seed(&self) -> IcrcSeed {
        self.seed
    }

    /// Where its packets come from.
    #[inline]
    pub(crate) const fn source(&self) -> Gid {
        self.source
    }
}
