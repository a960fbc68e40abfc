//! Registered memory with its shadow: what the model says is in it.

use crate::failure::{Failure, Verdict};
use std::ops::Range;
use trunkline::{Access, Mr, Pd};

/// Memory that a peer or the node itself writes to, and what should be there.
#[derive(Debug)]
pub(crate) struct Area {
    mr: Option<Mr>,
    shadow: Vec<u8>,
    name: String,
}

/// Bytes that someone may have put into an area by now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maybe<'a> {
    /// Where.
    pub(crate) at: usize,
    /// What.
    pub(crate) bytes: &'a [u8],
    /// Or anything: a packet may have been placed whose sum was found wrong afterwards.
    pub(crate) wild: bool,
}

impl Maybe<'_> {
    /// Whether byte `at` may be `value` because of it.
    pub(crate) fn has(&self, at: usize, value: u8) -> bool {
        let own = at.checked_sub(self.at).and_then(|i| self.bytes.get(i));
        own.is_some_and(|own| self.wild || *own == value)
    }
}

impl Area {
    /// Registers `content`.
    ///
    /// # Errors
    /// The node refuses.
    pub(crate) fn new(
        pd: &Pd,
        content: Vec<u8>,
        access: Access,
        name: String,
    ) -> Result<Self, trunkline::Error> {
        let mr = pd.register(content.len(), access)?;
        mr.write(0, &content)?;
        Ok(Self {
            mr: Some(mr),
            shadow: content,
            name,
        })
    }

    /// Its region, unless it was taken away.
    pub(crate) const fn mr(&self) -> Option<&Mr> {
        self.mr.as_ref()
    }

    /// Its region, while it is there.
    pub(crate) fn region(&self) -> &Mr {
        self.mr.as_ref().expect("the region of a live area")
    }

    /// Deregisters it: whatever happens to it from now on is not seen any more.
    pub(crate) fn take_away(&mut self) {
        self.mr = None;
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.shadow.len()
    }

    /// What should be at `range`.
    pub(crate) fn expected(&self, range: Range<usize>) -> &[u8] {
        &self.shadow[range]
    }

    /// What is at `range`, if it is still there.
    pub(crate) fn actual(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.mr.as_ref()?.read(range.start, &mut bytes).ok()?;
        Some(bytes)
    }

    /// One byte of it.
    pub(crate) fn byte(&self, at: usize) -> Option<u8> {
        let mut byte = [0];
        self.mr.as_ref()?.read(at, &mut byte).ok()?;
        Some(byte[0])
    }

    /// From now on `bytes` should be at `at`.
    pub(crate) fn expect(&mut self, at: usize, bytes: &[u8]) {
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Checks that `range` holds what it should, or what one of `maybe` may have put there.
    ///
    /// # Errors
    /// The first byte that is wrong.
    pub(crate) fn check(&self, range: Range<usize>, maybe: &[Maybe<'_>], why: &str) -> Verdict {
        let Some(actual) = self.actual(range.clone()) else {
            return Ok(());
        };
        let expected = &self.shadow[range.clone()];
        if actual == expected {
            return Ok(());
        }
        for (i, (found, wanted)) in actual.iter().zip(expected).enumerate() {
            let at = range.start + i;
            if found != wanted && !maybe.iter().any(|maybe| maybe.has(at, *found)) {
                let near = |bytes: &[u8]| {
                    let end = bytes.len().min(i + 8);
                    bytes[i..end]
                        .iter()
                        .map(|b| format!("{b:02x}"))
                        .collect::<String>()
                };
                return Err(Failure::wrong(format!(
                    "{}: byte {at} of {} (checked {range:?}) is {found:#04x}, not {wanted:#04x}; \
                     from there {}.. instead of {}..; {} writes may be under way",
                    why,
                    self.name,
                    near(&actual),
                    near(expected),
                    maybe.len()
                )));
            }
        }
        Ok(())
    }

    /// Checks everything but `loose`, which nobody can be sure of, then takes what is there as what
    /// should be there: the end of an incarnation.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn close(
        &mut self,
        loose: &[Range<usize>],
        maybe: &[Maybe<'_>],
        why: &str,
    ) -> Verdict {
        let Some(actual) = self.actual(0..self.len()) else {
            return Ok(());
        };
        for range in loose {
            self.shadow[range.clone()].copy_from_slice(&actual[range.clone()]);
        }
        self.check(0..self.len(), maybe, why)?;
        self.shadow = actual;
        Ok(())
    }
}
