//! Memory and a port for engines under fuzz: everything that is read or written is checked.

use std::cell::Cell;
use std::rc::Rc;
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::mem::{AtomicOp, Order, RegionMemory, Unreachable};
use trunkline_wire::{Crc, IcrcSeed, Path, icrc, parse_datagram};

/// Eight bytes that fill memory nobody may see. No target writes them anywhere else.
pub const MARK: [u8; 8] = [0x9e, 0x37, 0x79, 0xb9, 0x7f, 0x4a, 0x7c, 0x15];

/// A region whose accesses must be inside it.
#[derive(Clone, Debug)]
pub struct Region {
    addr: u64,
    bytes: Rc<[Cell<u8>]>,
}

impl Region {
    /// `len` zeros at `addr`.
    pub fn new(addr: u64, len: usize) -> Self {
        Self {
            addr,
            bytes: (0..len).map(|_| Cell::new(0)).collect(),
        }
    }

    /// Fills it with [`MARK`].
    #[must_use]
    pub fn marked(self) -> Self {
        for (place, byte) in self.bytes.iter().zip(MARK.iter().cycle()) {
            place.set(*byte);
        }
        self
    }

    /// Whether the bytes from `offset` on are still [`MARK`].
    pub fn is_marked_from(&self, offset: usize) -> bool {
        let marks = MARK.iter().cycle().skip(offset % MARK.len());
        self.bytes[offset..]
            .iter()
            .zip(marks)
            .all(|(place, byte)| place.get() == *byte)
    }

    /// Zeros the first `len` bytes.
    pub fn clear(&self, len: usize) {
        for place in &self.bytes[..len] {
            place.set(0);
        }
    }

    fn range(&self, offset: usize, len: usize) -> &[Cell<u8>] {
        let end = offset.checked_add(len).expect("the range wraps");
        self.bytes
            .get(offset..end)
            .expect("the range is outside of the region")
    }
}

impl RegionMemory for Region {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        let range = self.range(offset, out.len());
        for (byte, place) in out.iter_mut().zip(range) {
            *byte = place.get();
        }
        if let Some(crc) = crc {
            crc.update(out);
        }
        Ok(())
    }

    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        _: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        for (byte, place) in data.iter().zip(self.range(offset, data.len())) {
            place.set(*byte);
        }
        if let Some(crc) = crc {
            crc.update(data);
        }
        Ok(())
    }

    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Unreachable> {
        assert!(offset.is_multiple_of(8), "an atomic at {offset}");
        let mut bytes = [0; 8];
        self.copy_out(offset, &mut bytes, None)?;
        let before = u64::from_ne_bytes(bytes);
        self.copy_in(offset, &op.after(before).to_ne_bytes(), Order::Any, None)?;
        Ok(before)
    }
}

/// A port that keeps what is sent, and refuses when it is full.
#[derive(Debug)]
pub struct Outbox {
    /// Sent so far.
    pub sent: Vec<(Path, Vec<u8>)>,
    draft: Option<(Path, Vec<u8>)>,
    room: usize,
    longest: usize,
}

impl Outbox {
    /// Room for `room` datagrams of at most `longest` bytes.
    pub const fn new(room: usize, longest: usize) -> Self {
        Self {
            sent: Vec::new(),
            draft: None,
            room,
            longest,
        }
    }

    /// Takes what was sent.
    ///
    /// # Panics
    /// When it is no packet, its ICRC is wrong, or it tells what nobody may see.
    pub fn take(&mut self) -> Vec<(Path, Vec<u8>)> {
        for (path, datagram) in &self.sent {
            let packet = parse_datagram(datagram).expect("what is sent can be parsed");
            assert!(icrc::verify(path, 0, datagram), "sent with a wrong ICRC");
            assert_ne!(
                packet.header_crc_ok(IcrcSeed::new(path), 0, datagram),
                Some(false),
                "sent with a wrong HCRC"
            );
            let told = packet
                .payload
                .windows(MARK.len())
                .any(|bytes| bytes == MARK);
            assert!(!told, "secret bytes are sent");
        }
        std::mem::take(&mut self.sent)
    }
}

impl Egress for Outbox {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if self.sent.len() >= self.room {
            return None;
        }
        // Whatever is not written must not look right by chance.
        let (_, bytes) = self.draft.insert((*path, vec![0xee; length]));
        Some(Slot {
            datagram: bytes,
            identification: 0,
        })
    }

    fn commit(&mut self) {
        let (path, datagram) = self.draft.take().expect("committed without a slot");
        assert!(
            datagram.len() <= self.longest,
            "a datagram of {} bytes",
            datagram.len()
        );
        self.sent.push((path, datagram));
    }
}
