//! Numbers out of the bytes a fuzzer hands over.

/// A cursor over fuzzer input. Where it ends it goes on with zeros, so that a harness need not
/// care; [`is_empty`](Self::is_empty) tells it when to stop.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Starts at the first byte.
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether all bytes are used up.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `step` until all bytes are used up, or `most` times.
    pub fn drive(&mut self, most: usize, mut step: impl FnMut(&mut Self)) {
        for _ in 0..most {
            if self.is_empty() {
                break;
            }
            step(self);
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.bytes(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    /// Up to `length` bytes: fewer at the end.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// A bit.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number that is mostly at or near `base`, and sometimes anywhere.
    pub fn near(&mut self, base: u32) -> u32 {
        match self.byte() {
            delta @ 0..=63 => base.wrapping_add(u32::from(delta & 7)),
            delta @ 64..=127 => base.wrapping_sub(u32::from(delta & 7)),
            128..=200 => base,
            _ => self.u32(),
        }
    }
}
