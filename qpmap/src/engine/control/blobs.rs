//! What stands in packets of control messages, kept until they are acknowledged.

use crate::engine::build::OVERHEAD;
use crate::slab::Slab;
use trunkline_conn::delivery::EVERY_PATH;

/// Most bytes of control messages in one packet: every path carries it, so it never has to be cut.
pub(crate) const MAX_BLOB: usize = 1024;

const _: () = assert!(MAX_BLOB + OVERHEAD as usize <= EVERY_PATH as usize);

#[derive(Debug)]
struct Blob {
    serial: u32,
    bytes: Vec<u8>,
    /// Flows of whose end it tells.
    ends: Vec<u32>,
}

/// Contents of packets of control messages, kept until they are acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    live: Slab<Blob>,
    spare: Vec<Vec<u8>>,
    spare_ends: Vec<Vec<u32>>,
    serial: u32,
}

impl Blobs {
    /// Control messages in flight.
    pub(crate) const fn len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn blank(&mut self) -> Vec<u8> {
        self.spare
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(MAX_BLOB))
    }

    /// Room for the flows of whose end a packet tells.
    pub(crate) fn blank_ends(&mut self) -> Vec<u32> {
        self.spare_ends.pop().unwrap_or_default()
    }

    /// Keeps the content of a packet that tells of the end of the flows `ends`.
    pub(crate) fn insert(&mut self, bytes: Vec<u8>, ends: Vec<u32>) -> (u32, u32) {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let blob = Blob {
            serial,
            bytes,
            ends,
        };
        (self.live.insert(blob), serial)
    }

    pub(crate) fn give_back(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.spare.push(bytes);
    }

    pub(crate) fn give_back_ends(&mut self, mut ends: Vec<u32>) {
        if ends.capacity() > 0 {
            ends.clear();
            self.spare_ends.push(ends);
        }
    }

    pub(crate) fn get(&self, slot: u32, serial: u32) -> Option<&[u8]> {
        let blob = self.live.get(slot)?;
        (blob.serial == serial).then_some(&blob.bytes)
    }

    /// The packet needs not be said again; gives the flows of whose end it told.
    pub(crate) fn free(&mut self, slot: u32, serial: u32) -> Vec<u32> {
        if self.get(slot, serial).is_none() {
            return Vec::new();
        }
        let blob = self.live.remove(slot);
        self.give_back(blob.bytes);
        blob.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_there_under_its_serial_until_it_is_freed() {
        let mut blobs = Blobs::default();
        let mut bytes = blobs.blank();
        bytes.extend([1, 2, 3]);
        let (slot, serial) = blobs.insert(bytes, vec![7, 9]);
        assert_eq!(blobs.get(slot, serial), Some(&[1, 2, 3][..]));
        assert_eq!(blobs.get(slot, serial + 1), None);
        assert!(blobs.free(slot, serial + 1).is_empty(), "it is another one");
        assert_eq!((blobs.len(), blobs.free(slot, serial)), (1, vec![7, 9]));
        assert!(blobs.get(slot, serial).is_none() && blobs.len() == 0);
        // Its memory serves the next one, which has the slot under another serial.
        assert!(blobs.blank().is_empty());
        let (again, later) = blobs.insert(Vec::new(), Vec::new());
        assert!(again == slot && later != serial);
        assert!(blobs.free(slot, serial).is_empty() && blobs.len() == 1);
    }
}
