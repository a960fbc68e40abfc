//! Timers of many records, of which most are moved or cancelled before they fire: a hierarchical
//! timing wheel ([ADR 20](../../docs/adr/0020-one-timer-wheel.md)).
//!
//! A timer is named by a key of its owner's choice. A key has one timer at most, so that arming it
//! again moves the timer, and a cancelled timer leaves nothing behind: owners keep no handles, and
//! no serial numbers that tell whether a timer still means anything. Arming, moving and cancelling
//! cost the same however many timers there are.
//!
//! # Structure
//!
//! Level 0 has a slot for each nanosecond of the 64 that share all but their last six bits with the
//! time up to which the wheel has turned; each further level has slots that are 64 times as long. A
//! timer stands in the level of the highest six bits in which its deadline differs from that time.
//! So the first slot of the lowest level in use has the next timer. Where that slot has a few, the
//! next one is looked for among them; where it has more, they are sorted into the levels below, one
//! in each [step](Wheel::step). Timers in a slot stand in the order in which they were armed,
//! and keep it when they are sorted: equal deadlines fire in that order.

use crate::time::Instant;
use alloc::vec::Vec;

/// Bits of a deadline that choose the slot of a level.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// A slot above the lowest level is searched while it has no more timers than this, and sorted when
/// it has more.
const FEW: usize = 4;
/// No entry.
const NONE: u32 = u32::MAX;
/// Of a link: it names a slot and no entry.
const SLOT: u32 = 1 << 31;
/// Of a link by key: the entry has no timer.
const HOLE: u32 = u32::MAX - 1;
/// Entries and lists of the index that there may always be.
const ROOM: usize = 16;

/// Timers with keys.
#[derive(Debug)]
pub struct Wheel {
    /// The wheel has turned so far, in ns: no timer is due earlier.
    time: u64,
    levels: Vec<Level>,
    /// Bit n: level n has timers.
    used: u16,
    /// The level above the lowest whose present slot (the one that `time` lies in) has timers; else
    /// 0. All levels below have none then, unless that slot is being sorted into them.
    open: u32,
    /// The present slot of level `open` is being sorted.
    sorting: bool,
    /// Timers that are armed.
    armed: u32,
    entries: Vec<Entry>,
    /// First of the entries that have no timer.
    holes: u32,
    /// First entries of lists by key: a hash table, linked through the entries.
    index: Vec<u32>,
}

/// What a [step](Wheel::step) did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// The timer with this key was due and is gone.
    Fired(u32),
    /// A timer was sorted: there may be some that are due.
    Sorted,
    /// No timer is due.
    Idle,
}

#[derive(Clone, Debug)]
struct Level {
    /// Bit n: slot n has timers.
    occupied: u64,
    /// First entry of each slot that has any.
    first: [u32; SLOTS],
}

/// A timer. Those of a slot are linked.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    key: u32,
    /// The next entry in its list of the index; [`HOLE`] where there is no timer.
    chain: u32,
    /// The entry before it in its slot; of the first one the last.
    before: u32,
    /// The entry after it; of the last one the slot.
    after: u32,
}

const _: () = assert!(size_of::<Entry>() == 24);

impl Wheel {
    /// Bytes of a timer that is armed, its place in the index included. While timers become more,
    /// up to 10 bytes for each are room for others; after a peak up to three times as much.
    pub const TIMER: usize = size_of::<Entry>() + size_of::<u32>();

    /// A wheel without timers. Allocates nothing.
    pub const fn new() -> Self {
        Self {
            time: 0,
            levels: Vec::new(),
            used: 0,
            open: 0,
            sorting: false,
            armed: 0,
            entries: Vec::new(),
            holes: NONE,
            index: Vec::new(),
        }
    }

    /// Timers that are armed.
    pub const fn len(&self) -> usize {
        self.armed as usize
    }

    /// Whether no timer is armed.
    pub const fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// When the timer with this key fires; `None` when it is not armed.
    pub fn deadline(&self, key: u32) -> Option<Instant> {
        let entry = self.entries.get(self.find(key) as usize)?;
        Some(Instant::from_nanos(entry.at))
    }

    /// Bytes that it has allocated.
    pub const fn state_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.index.capacity() * size_of::<u32>()
            + self.levels.capacity() * size_of::<Level>()
    }

    /// Lets the timer with this key fire at `at`, and not when it was armed for before, if it was.
    /// What is armed for a time that has passed is due at once, after all that is due already.
    /// Arming a timer for [`Instant::FAR`], which never comes, cancels it.
    pub fn arm(&mut self, at: Instant, key: u32) {
        if at == Instant::FAR {
            self.cancel(key);
            return;
        }
        let found = self.find(key);
        self.set(found, at, key);
    }

    /// The same, unless the timer fires at `at` or earlier.
    #[inline]
    pub fn arm_sooner(&mut self, at: Instant, key: u32) {
        let found = self.find(key);
        let entry = self.entries.get(found as usize);
        if at != Instant::FAR && entry.is_none_or(|entry| at.as_nanos() < entry.at) {
            self.set(found, at, key);
        }
    }

    /// Takes the timer with this key back, if it is armed.
    pub fn cancel(&mut self, key: u32) {
        let found = self.find(key);
        if found != NONE {
            self.remove(found);
        }
    }

    /// When [`step`](Self::step) is to be called next: when the next timer is due, or earlier where
    /// many are about as near.
    pub fn next(&self) -> Option<Instant> {
        let (level, slot) = self.first_slot()?;
        let at = match self.earliest(level, slot) {
            _ if self.sorting => self.time,
            Some(found) => self.entries[found as usize].at,
            None => self.start(level, slot),
        };
        Some(Instant::from_nanos(at))
    }

    /// Fires the next timer if it is due at `now`, or gets closer to it. Timers fire in the order
    /// of their deadlines, and equal ones in the order in which they were armed. A step takes the
    /// same time however many timers there are: call it until it is [idle](Step::Idle), as often
    /// as there is time for.
    #[inline]
    pub fn step(&mut self, now: Instant) -> Step {
        let now = now.as_nanos();
        let Some((level, slot)) = self.first_slot() else {
            self.time = self.time.max(now);
            return Step::Idle;
        };
        if self.start(level, slot) > now && !self.sorting {
            self.turn(now);
            return Step::Idle;
        }
        self.step_in(now, level, slot)
    }

    /// The same where the first slot may have what is due.
    fn step_in(&mut self, now: u64, level: u32, slot: u32) -> Step {
        if self.sorting {
            self.sort();
            return Step::Sorted;
        }
        let Some(found) = self.earliest(level, slot) else {
            self.time = self.start(level, slot);
            self.open = level;
            self.sorting = true;
            self.sort();
            return Step::Sorted;
        };
        let Entry { at, key, .. } = self.entries[found as usize];
        if at > now {
            self.turn(now);
            return Step::Idle;
        }
        // What else the slot has stays there.
        self.time = at;
        self.open = level;
        self.remove(found);
        Step::Fired(key)
    }

    /// Arms the timer of entry `found`, or a new one.
    fn set(&mut self, found: u32, at: Instant, key: u32) {
        let at = at.as_nanos().max(self.time);
        let entry = match self.entries.get(found as usize) {
            Some(entry) if entry.at == at => return,
            Some(_) => {
                self.unlink(found);
                found
            }
            None => self.add(key),
        };
        self.entries[entry as usize].at = at;
        let level = level_of(at ^ self.time).max(self.open);
        self.link(entry, level);
    }

    /// Turns on to `now`: nothing is due until then.
    fn turn(&mut self, now: u64) {
        let passed = self.time ^ self.time.max(now);
        self.time ^= passed;
        let level = level_of(passed);
        if level > self.open && self.has_timers(level, digit(self.time, level)) {
            self.open = level;
        }
    }

    /// Takes the first timer of the slot that is being sorted to the level where it belongs.
    fn sort(&mut self) {
        let level = &self.levels[self.open as usize];
        let first = level.first[digit(self.time, self.open) as usize];
        self.unlink(first);
        let level = level_of(self.entries[first as usize].at ^ self.time);
        self.link(first, level);
    }

    /// The first slot of the lowest level in use: level and slot.
    #[inline]
    fn first_slot(&self) -> Option<(u32, u32)> {
        let level = self.used.trailing_zeros();
        let slots = self.levels.get(level as usize)?.occupied;
        Some((level, slots.trailing_zeros()))
    }

    /// When the first slot of a level begins, or the wheel has turned to if that is later.
    #[inline]
    fn start(&self, level: u32, slot: u32) -> u64 {
        let shift = level * BITS;
        // Of the highest level the slot has less than six bits.
        let above = self.time.checked_shr(shift + BITS).unwrap_or(0);
        let above = above.checked_shl(shift + BITS).unwrap_or(0);
        (above | u64::from(slot) << shift).max(self.time)
    }

    /// The next timer of a slot; `None` where it has more than a few.
    fn earliest(&self, level: u32, slot: u32) -> Option<u32> {
        let mut best = self.levels[level as usize].first[slot as usize];
        if level == 0 {
            return Some(best);
        }
        let mut next = best;
        for _ in 0..FEW {
            let entry = &self.entries[next as usize];
            if entry.at < self.entries[best as usize].at {
                best = next;
            }
            if entry.after & SLOT != 0 {
                return Some(best);
            }
            next = entry.after;
        }
        None
    }

    fn has_timers(&self, level: u32, slot: u32) -> bool {
        let level = self.levels.get(level as usize);
        level.is_some_and(|level| level.occupied & 1 << slot != 0)
    }

    /// Puts an entry at the end of its slot of a level.
    fn link(&mut self, entry: u32, level: u32) {
        while self.levels.len() <= level as usize {
            self.levels.reserve_exact(1);
            self.levels.push(Level::EMPTY);
        }
        self.used |= 1 << level;
        let slot = digit(self.entries[entry as usize].at, level);
        let mark = SLOT | level << BITS | slot;
        let level = &mut self.levels[level as usize];
        let first = &mut level.first[slot as usize];
        let before = if level.occupied & 1 << slot == 0 {
            level.occupied |= 1 << slot;
            *first = entry;
            entry
        } else {
            let first = &mut self.entries[*first as usize].before;
            let last = core::mem::replace(first, entry);
            self.entries[last as usize].after = entry;
            last
        };
        let record = &mut self.entries[entry as usize];
        (record.before, record.after) = (before, mark);
    }

    /// Takes an entry out of its slot.
    fn unlink(&mut self, entry: u32) {
        let Entry { before, after, .. } = self.entries[entry as usize];
        let front = self.entries[before as usize].after;
        if front & after & SLOT != 0 {
            self.empty(after);
            return;
        }
        // Before the first entry comes the last, and after the last one the slot.
        if front & SLOT != 0 {
            *self.first_of(front) = after;
        } else {
            self.entries[before as usize].after = after;
        }
        let next = match after & SLOT {
            0 => after,
            _ => *self.first_of(after),
        };
        self.entries[next as usize].before = before;
    }

    /// A slot has no timers any more.
    fn empty(&mut self, mark: u32) {
        let (level, slot) = (mark >> BITS & 0xf, mark & (SLOTS as u32 - 1));
        let slots = &mut self.levels[level as usize].occupied;
        *slots &= !(1 << slot);
        if *slots == 0 {
            self.used &= !(1 << level);
        }
        if level == self.open && slot == digit(self.time, level) {
            self.open = 0;
            self.sorting = false;
        }
    }

    /// The first entry of the slot that a link names.
    fn first_of(&mut self, mark: u32) -> &mut u32 {
        let level = &mut self.levels[(mark >> BITS & 0xf) as usize];
        &mut level.first[mark as usize & (SLOTS - 1)]
    }

    /// The entry with this key, or [`NONE`].
    #[inline]
    fn find(&self, key: u32) -> u32 {
        let mut found = match self.index.get(self.list(key)) {
            Some(first) => *first,
            None => return NONE,
        };
        while let Some(entry) = self.entries.get(found as usize)
            && entry.key != key
        {
            found = entry.chain;
        }
        found
    }

    /// The list of the index that a key belongs to. Keys that follow each other, or at equal
    /// distances, are spread evenly. Owners choose keys, so that this is no place for a peer to aim
    /// at.
    #[inline]
    const fn list(&self, key: u32) -> usize {
        let hash = key.wrapping_mul(0x9e37_79b1) as u64;
        ((hash * self.index.len() as u64) >> 32) as usize
    }

    /// A new entry, in no slot.
    fn add(&mut self, key: u32) -> u32 {
        let entry = match self.holes {
            NONE => self.grow(),
            hole => {
                self.take_hole(hole);
                hole
            }
        };
        self.armed += 1;
        if self.len() > self.index.len() {
            self.index_in((2 * self.index.len()).max(ROOM));
        }
        let list = self.list(key);
        let chain = core::mem::replace(&mut self.index[list], entry);
        let record = &mut self.entries[entry as usize];
        (record.key, record.chain) = (key, chain);
        entry
    }

    /// An entry more, behind all others.
    fn grow(&mut self) -> u32 {
        let entry = self.entries.len();
        assert!(entry < SLOT as usize, "a wheel has less than 2^31 timers");
        reserve(&mut self.entries);
        self.entries.push(Entry {
            at: 0,
            key: 0,
            chain: HOLE,
            before: NONE,
            after: NONE,
        });
        entry as u32
    }

    /// Takes a timer out.
    fn remove(&mut self, entry: u32) {
        self.unlink(entry);
        let Entry { key, chain, .. } = self.entries[entry as usize];
        *self.link_to(entry, key) = chain;
        self.armed -= 1;
        self.add_hole(entry);
        // Holes are for timers that come. Where they are more than all others, they go.
        if self.entries.len() > 2 * self.armed as usize + ROOM {
            self.drop_last();
            self.drop_last();
        }
        if self.index.len() > (4 * self.len()).max(ROOM) {
            self.index_in(self.index.len() / 2);
        }
    }

    /// There is nothing in an entry any more: it is the next to be taken.
    fn add_hole(&mut self, entry: u32) {
        let next = core::mem::replace(&mut self.holes, entry);
        let record = &mut self.entries[entry as usize];
        (record.key, record.chain) = (0, HOLE);
        (record.before, record.after) = (NONE, next);
        if let Some(next) = self.entries.get_mut(next as usize) {
            next.before = entry;
        }
    }

    fn take_hole(&mut self, entry: u32) {
        let Entry { before, after, .. } = self.entries[entry as usize];
        match self.entries.get_mut(before as usize) {
            Some(before) => before.after = after,
            None => self.holes = after,
        }
        if let Some(after) = self.entries.get_mut(after as usize) {
            after.before = before;
        }
    }

    /// Does without the last entry: its timer moves to a hole.
    fn drop_last(&mut self) {
        let last = self.entries.len() as u32 - 1;
        if self.entries[last as usize].chain == HOLE {
            self.take_hole(last);
        } else {
            let hole = self.holes;
            self.take_hole(hole);
            self.relocate(last, hole);
        }
        self.entries.pop();
        give_back(&mut self.entries);
    }

    /// Moves what is in one entry to another, which is in no slot and no list.
    fn relocate(&mut self, from: u32, to: u32) {
        let mut entry = self.entries[from as usize];
        *self.link_to(from, entry.key) = to;
        if entry.before == from {
            // It is alone in its slot.
            entry.before = to;
            *self.first_of(entry.after) = to;
            self.entries[to as usize] = entry;
            return;
        }
        let front = self.entries[entry.before as usize].after;
        if front & SLOT != 0 {
            *self.first_of(front) = to;
        } else {
            self.entries[entry.before as usize].after = to;
        }
        let next = match entry.after & SLOT {
            0 => entry.after,
            _ => *self.first_of(entry.after),
        };
        self.entries[next as usize].before = to;
        self.entries[to as usize] = entry;
    }

    /// What links to an entry with this key in its list of the index.
    fn link_to(&mut self, entry: u32, key: u32) -> &mut u32 {
        let list = self.list(key);
        let mut at = self.index[list];
        if at == entry {
            return &mut self.index[list];
        }
        while self.entries[at as usize].chain != entry {
            at = self.entries[at as usize].chain;
        }
        &mut self.entries[at as usize].chain
    }

    /// Makes the index anew, with so many lists.
    fn index_in(&mut self, lists: usize) {
        self.index.clear();
        self.index.resize(lists, NONE);
        self.index.shrink_to(lists);
        for entry in 0..self.entries.len() {
            if self.entries[entry].chain != HOLE {
                let list = self.list(self.entries[entry].key);
                let first = core::mem::replace(&mut self.index[list], entry as u32);
                self.entries[entry].chain = first;
            }
        }
    }
}

/// Makes room for one more: not twice as much as there is, as there are many timers.
fn reserve<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 4).max(ROOM));
    }
}

/// Gives memory back that is not used, when most is not.
fn give_back<T>(list: &mut Vec<T>) {
    if list.len() <= list.capacity() / 2 && list.capacity() > ROOM {
        list.shrink_to((list.capacity() / 4 * 3).max(ROOM));
    }
}

impl Default for Wheel {
    fn default() -> Self {
        Self::new()
    }
}

impl Level {
    const EMPTY: Self = Self {
        occupied: 0,
        first: [NONE; SLOTS],
    };
}

/// The level of a timer whose deadline differs in these bits from the time.
#[inline]
const fn level_of(bits: u64) -> u32 {
    (63 - (bits | 1).leading_zeros()) / BITS
}

/// The slot of a level that a time lies in.
#[inline]
const fn digit(time: u64, level: u32) -> u32 {
    (time >> (level * BITS)) as u32 & (SLOTS as u32 - 1)
}

#[cfg(test)]
mod tests;
