//! What stands in packets of notices, kept until they are acknowledged.

use crate::slab::Slab;

/// Most bytes of notices in one packet.
pub(crate) const MAX_BLOB: usize = 4096;

/// Contents of notice packets, kept until they are acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    live: Slab<(u32, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    serial: u32,
}

impl Blobs {
    /// Notices in flight.
    pub(crate) const fn len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn blank(&mut self) -> Vec<u8> {
        self.spare
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(MAX_BLOB))
    }

    pub(crate) fn insert(&mut self, bytes: Vec<u8>) -> (u32, u32) {
        self.serial = self.serial.wrapping_add(1);
        (self.live.insert((self.serial, bytes)), self.serial)
    }

    pub(crate) fn give_back(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.spare.push(bytes);
    }

    pub(crate) fn get(&self, slot: u32, serial: u32) -> Option<&[u8]> {
        let (own, bytes) = self.live.get(slot)?;
        (*own == serial).then_some(bytes)
    }

    pub(crate) fn free(&mut self, slot: u32, serial: u32) {
        if self.get(slot, serial).is_some() {
            let (_, bytes) = self.live.remove(slot);
            self.give_back(bytes);
        }
    }
}
