//! Owns the QPs of an engine: their records, their numbers, and which numbers rest.

use super::qp::{Cold, Place, Qp};
use crate::error::VerbsError;
use crate::key::Secret24;
use crate::mapping::Mapping;
use crate::slab::{Slab, make_room, reach};
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use trunkline_conn::mem::Responder;
use trunkline_wire::Qpn;

/// Numbers of destroyed QPs that rest before they are used again, and with them their indices,
/// unless there are no others. Whoever still has something of that QP, a program, its peer or the
/// network, does not take it for the new one's.
const RESTING: usize = 1024;

/// The QPs of an engine.
#[derive(Debug)]
pub(crate) struct Qps<W> {
    /// What packets touch.
    hot: Slab<Qp<W>>,
    /// What they do not; as long as the list of slots.
    cold: Vec<Option<Cold>>,
    /// Of each index that was ever used.
    names: Vec<Name>,
    /// Indices of QPs that were destroyed last, oldest first: their numbers rest.
    resting: VecDeque<u32>,
    secret: Secret24,
    /// Most QPs.
    limit: u32,
    /// Places that were given out and have no QP yet.
    reserved: u32,
    /// Which connection carries each, for others to read.
    mapping: Arc<Mapping>,
}

/// What names the QPs at an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    /// Sealed once, as that takes loads from large tables.
    number: Qpn,
    /// That of the last QP: a number is never used twice with the same one.
    generation: u32,
}

impl<W> Index<u32> for Qps<W> {
    type Output = Qp<W>;

    #[inline]
    fn index(&self, qp: u32) -> &Qp<W> {
        &self.hot[qp]
    }
}

impl<W> IndexMut<u32> for Qps<W> {
    #[inline]
    fn index_mut(&mut self, qp: u32) -> &mut Qp<W> {
        &mut self.hot[qp]
    }
}

impl<W> Qps<W> {
    /// At most `most` QPs; `secret` makes their numbers.
    pub(crate) fn new(secret: Secret24, most: u32) -> Self {
        Self {
            hot: Slab::new(),
            cold: Vec::new(),
            names: Vec::new(),
            resting: VecDeque::new(),
            limit: most.min(secret.size()),
            reserved: 0,
            secret,
            mapping: Arc::new(Mapping::new()),
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.hot.len()
    }

    /// QPs that there may be.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Bytes of tables that no QPs are in.
    pub(crate) fn room_bytes(&self) -> usize {
        let free = |capacity: usize, each: usize| (capacity - self.hot.len()) * each;
        self.hot.room_bytes()
            + free(self.cold.capacity(), size_of::<Option<Cold>>())
            + free(self.names.capacity(), size_of::<Name>())
    }

    /// The table QP -> connection.
    pub(crate) const fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Indices that were ever used: those of all QPs are below it.
    pub(crate) const fn slots(&self) -> u32 {
        self.hot.slots()
    }

    #[inline]
    pub(crate) fn get(&self, qp: u32) -> Option<&Qp<W>> {
        self.hot.get(qp)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Qp<W>)> {
        self.hot.iter()
    }

    /// QPs, and places that were given out for others.
    const fn taken(&self) -> usize {
        self.hot.len() + self.reserved as usize
    }

    /// Whether a place can be [reserved](Self::reserve) without ending the rest of a number.
    pub(crate) fn has_rested(&self) -> bool {
        self.taken() + self.resting.len() < self.limit as usize
    }

    /// Gives out the place of a QP that is [inserted](Self::insert) later.
    ///
    /// # Errors
    /// [`VerbsError::Limit`]: with those that have a place there are as many QPs as may be.
    pub(crate) fn reserve(&mut self) -> Result<Place, VerbsError> {
        if self.taken() >= self.limit as usize {
            return Err(VerbsError::Limit {
                what: "QPs",
                limit: self.limit.into(),
            });
        }
        if !self.has_rested() {
            self.end_rest();
        }
        let index = self.hot.reserve();
        self.reserved += 1;
        if self.names.len() <= index as usize {
            make_room(&mut self.names, 1);
            self.names.push(Name {
                number: Qpn::from_wire(self.secret.seal(index)),
                generation: 0,
            });
        }
        let qpn = self.number_at(index);
        Ok(Place { index, qpn })
    }

    /// Adds a QP, with another generation than the one before at its index had.
    ///
    /// # Panics
    /// Its place was not [reserved](Self::reserve).
    pub(crate) fn insert(&mut self, qp: Qp<W>, cold: Cold) {
        let (index, qpn) = (qp.queues.index, qp.queues.qpn);
        self.hot.fill(index, qp);
        self.reserved -= 1;
        self.secret.expect(qpn.get(), index);
        let at = index as usize;
        reach(&mut self.cold, index, || None);
        self.cold[at] = Some(cold);
        self.begin_life(index);
    }

    /// Takes a QP out; its number rests.
    ///
    /// # Panics
    /// There is none of this index.
    pub(crate) fn remove(&mut self, qp: u32) -> (Qp<W>, Cold) {
        let record = self.hot.take(qp);
        let cold = self.cold[qp as usize].take();
        self.resting.push_back(qp);
        if self.resting.len() > RESTING {
            self.end_rest();
        }
        (record, cold.expect("a QP has its cold part"))
    }

    /// The number that has rested longest may be used again.
    fn end_rest(&mut self) {
        if let Some(index) = self.resting.pop_front() {
            self.hot.release(index);
        }
    }

    /// The number that QPs have at an index that was ever used.
    #[inline]
    pub(crate) fn number_at(&self, index: u32) -> Qpn {
        self.names[index as usize].number
    }

    /// A QP that executes what its peer asks for.
    #[inline]
    pub(crate) fn responder(&self, index: u32) -> Responder {
        Responder {
            pd: self[index].pd,
            qpn: self.number_at(index),
        }
    }

    /// The index that QPs of this number have, whether there is one or not.
    ///
    /// QPs that were made one after the other are named one after the other, most of the time. To
    /// compare the number with those beside the last one takes a load from the line that this is
    /// in; to open it takes six, one after the other, from tables that do not fit a first cache.
    #[inline]
    pub(crate) fn index_at(&self, number: Qpn) -> u32 {
        let (last, index) = self.secret.last();
        if number.get() == last {
            return index;
        }
        for near in [index.wrapping_add(1), index.wrapping_sub(1)] {
            let name = self.names.get(near as usize);
            if name.is_some_and(|name| name.number == number) {
                self.secret.expect(number.get(), near);
                return near;
            }
        }
        self.secret.open(number.get())
    }

    /// The index of the QP with this number.
    #[inline]
    pub(crate) fn find(&self, number: Qpn) -> Option<u32> {
        let index = self.index_at(number);
        self.hot.get(index).map(|_| index)
    }

    /// The cold part of a QP.
    ///
    /// # Panics
    /// There is none of this index.
    #[inline]
    pub(crate) fn cold(&self, qp: u32) -> &Cold {
        let cold = self.get_cold(qp);
        cold.expect("a QP in the slab has its cold part")
    }

    pub(crate) fn cold_mut(&mut self, qp: u32) -> &mut Cold {
        let cold = self.cold[qp as usize].as_mut();
        cold.expect("a QP in the slab has its cold part")
    }

    /// The cold part of the QP at an index, if there is one.
    pub(crate) fn get_cold(&self, qp: u32) -> Option<&Cold> {
        self.cold.get(qp as usize)?.as_ref()
    }

    /// Generation of the last QP at an index that was ever used. 0 is none of them.
    #[inline]
    pub(crate) fn generation(&self, qp: u32) -> u32 {
        self.names[qp as usize].generation
    }

    /// A number is used anew: what is said of its former lives counts no more.
    pub(crate) fn begin_life(&mut self, qp: u32) {
        let generation = &mut self.names[qp as usize].generation;
        *generation = generation.wrapping_add(1).max(1);
    }
}

#[cfg(test)]
mod tests;
