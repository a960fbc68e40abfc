//! Which addresses of this process are registered, and which of them are promoted.

use super::fork;
use super::ranges::Ranges;
use super::swap::{self, NotShared};
use super::userfault::Userfault;
use super::{Lender, NotPromoted};
use crate::maps::Maps;
use crate::process::page_size;
use crate::region::Region;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use trunkline_conn::mem::RegionMemory;

/// All of this process.
static LEDGER: Mutex<Ledger> = Mutex::new(Ledger::EMPTY);

/// What is registered.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Counts the forks that led to this process.
    forks: u64,
    userfault: Option<Userfault>,
    /// The regions that are held.
    live: Ranges,
    /// What is promoted, by its first address; none overlaps another one.
    runs: BTreeMap<usize, Run>,
}

/// Whole pages that are promoted together.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) len: usize,
    /// The shared memory that is mapped there.
    pub(super) place: Region,
    /// Regions that have some of its pages.
    users: usize,
    /// How often the memory was mapped before it was put there.
    mappings: usize,
}

/// Keeps addresses of this process as a region that a service reaches: whatever is promoted there
/// stays so.
#[derive(Debug)]
pub struct Held {
    range: Range<usize>,
    forks: u64,
    shared: Option<(usize, Region)>,
    refused: Option<NotPromoted>,
}

impl Held {
    /// Bytes from the start of the region to those that are promoted, and the shared memory that
    /// these are; `None` where there are none.
    pub fn shared(&self) -> Option<(usize, &Region)> {
        let (start, place) = self.shared.as_ref()?;
        Some((*start, place))
    }

    /// Why its pages were not promoted, if they were to be.
    pub const fn refused(&self) -> Option<&NotPromoted> {
        self.refused.as_ref()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut ledger = Ledger::lock();
        // What a parent registered is its own affair.
        let left = match ledger.forks == self.forks {
            true => ledger.release(&self.range),
            false => Vec::new(),
        };
        drop(ledger);
        // To give memory back may take a lock of the lender's.
        drop(left);
    }
}

/// Holds the memory of a region. With a `lender` the pages that are wholly in it are promoted, or
/// it shares those that are.
///
/// Other threads may use the memory meanwhile. Those that store to it wait for a millisecond each
/// 2 MiB.
pub fn hold(memory: &Region, lender: Option<&dyn Lender>) -> Held {
    let start = memory.base().as_ptr().addr();
    let range = start..start.saturating_add(memory.len());
    let mut ledger = Ledger::lock();
    let shared = lender.map(|lender| ledger.shared(memory, &range, lender));
    ledger.live.insert(&range);
    for (_, run) in ledger.overlapping(&range) {
        run.users += 1;
    }
    let (shared, refused) = match shared {
        None => (None, None),
        Some(Ok(shared)) => (Some(shared), None),
        Some(Err(why)) => (None, Some(why)),
    };
    Held {
        range,
        forks: ledger.forks,
        shared,
        refused,
    }
}

impl Ledger {
    const EMPTY: Self = Self {
        forks: 0,
        userfault: None,
        live: Ranges::EMPTY,
        runs: BTreeMap::new(),
    };

    pub(super) fn lock() -> MutexGuard<'static, Self> {
        LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn runs(&self) -> &BTreeMap<usize, Run> {
        &self.runs
    }

    /// This process is a child of the one that it was: it has nothing of what is promoted, and
    /// whose memory that is may not be touched here.
    pub(super) fn forget(&mut self) {
        let forks = self.forks + 1;
        let old = std::mem::replace(
            self,
            Self {
                forks,
                ..Self::EMPTY
            },
        );
        let Self {
            userfault, runs, ..
        } = old;
        // Its calls would change the parent's memory.
        drop(userfault);
        std::mem::forget(runs);
    }

    /// The runs that have addresses of `range`.
    fn overlapping(&mut self, range: &Range<usize>) -> impl Iterator<Item = (&usize, &mut Run)> {
        let runs = self.runs.range_mut(..range.end).rev();
        runs.take_while(|(at, run)| *at + run.len > range.start)
    }

    /// The promoted part of a region: its offset and its memory.
    fn shared(
        &mut self,
        memory: &Region,
        range: &Range<usize>,
        lender: &dyn Lender,
    ) -> Result<(usize, Region), NotPromoted> {
        let page = page_size();
        let first = range.start.checked_next_multiple_of(page);
        let pages = first.unwrap_or(usize::MAX)..range.end / page * page;
        if pages.is_empty() {
            return Err(NotPromoted::NoPage);
        }
        let offset = pages.start - range.start;
        if let Some((at, run)) = self.overlapping(&pages).next()
            && *at <= pages.start
            && pages.end <= *at + run.len
        {
            let part = run.place.clone().part(pages.start - at, pages.len());
            return Ok((offset, part.expect("the pages are in the run")));
        }
        if self.live.overlap(&pages) {
            return Err(NotPromoted::Overlaps);
        }
        let pages_of = memory.clone().part(offset, pages.len());
        let place = self.promote(&pages_of.expect("they are in the region"), lender)?;
        Ok((offset, place))
    }

    /// Promotes whole pages that no region has.
    fn promote(&mut self, pages: &Region, lender: &dyn Lender) -> Result<Region, NotPromoted> {
        let (at, len) = (pages.base().as_ptr(), pages.len());
        let userfault = self.userfault(lender)?;
        let place = lender.lend(len).ok_or(NotPromoted::NoRoom)?;
        assert_eq!(place.len(), len, "as much is lent as was asked for");
        let maps = Maps::read().map_err(NotPromoted::System)?;
        if !may_promote(&(at.addr()..at.addr() + len), &maps) {
            return Err(NotPromoted::NotPlain);
        }
        fork::watch();
        let shared = swap::share(userfault, at, place.base().as_ptr(), len);
        if let Err(NotShared { error, is_undone }) = shared {
            if !is_undone {
                // Nobody else is to be given this memory.
                std::mem::forget(place);
            }
            return Err(NotPromoted::System(error));
        }
        let run = Run {
            len,
            place: place.clone(),
            users: 0,
            mappings: mappings_of(&place, &maps),
        };
        self.runs.insert(at.addr(), run);
        Ok(place)
    }

    fn userfault(&mut self, lender: &dyn Lender) -> Result<&Userfault, NotPromoted> {
        if self.userfault.is_none() {
            let own = Userfault::open();
            let made = own.or_else(|_| Userfault::by(lender.userfault_device()?.as_fd()));
            self.userfault = Some(made.map_err(NotPromoted::NoUserfault)?);
        }
        Ok(self.userfault.as_ref().expect("it was made just now"))
    }

    /// A region is gone: what nobody has any more is private memory again. Gives what nobody needs
    /// then.
    fn release(&mut self, range: &Range<usize>) -> Vec<Region> {
        self.live.remove(range);
        let mut unused = Vec::new();
        for (at, run) in self.overlapping(range) {
            run.users -= 1;
            if run.users == 0 {
                unused.push(*at);
            }
        }
        let runs = unused
            .into_iter()
            .filter_map(|at| self.runs.remove_entry(&at));
        let runs: Vec<_> = runs.collect();
        runs.into_iter()
            .filter_map(|(at, run)| self.restore(at, run))
            .collect()
    }

    /// Makes a run private memory again, as far as it is where it was put. Gives its shared memory
    /// where nothing of the program is left in it.
    fn restore(&self, at: usize, run: Run) -> Option<Region> {
        if self.try_restore(at, &run).is_ok_and(|is_free| is_free) {
            return Some(run.place);
        }
        // The program has moved its memory, or the system refused: nobody else is given it.
        std::mem::forget(run.place);
        None
    }

    /// True where the program had its memory nowhere else.
    fn try_restore(&self, at: usize, run: &Run) -> io::Result<bool> {
        let userfault = self.userfault.as_ref();
        let userfault = userfault.expect("what is promoted was so by one");
        let maps = Maps::read()?;
        let parts = run.parts(at, &maps);
        for part in &parts {
            swap::unshare(userfault, part.at, part.place, part.len, part.protection)?;
        }
        Ok(mappings_of(&run.place, &maps) <= run.mappings + parts.len())
    }
}

/// Whether these pages may be promoted.
fn may_promote(range: &Range<usize>, maps: &Maps) -> bool {
    let here = 0_u8;
    let stack = std::ptr::from_ref(&here).addr();
    maps.all_within(range, |area| {
        area.is_plain() && !area.addresses.contains(&stack)
    })
}

/// Some of a run that the program has mapped where it was put.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) at: *mut u8,
    pub(super) place: *mut u8,
    pub(super) len: usize,
    /// The rights that the program has there.
    pub(super) protection: libc::c_int,
}

impl Run {
    /// What is still where it was put, at `at`.
    pub(super) fn parts(&self, at: usize, maps: &Maps) -> Vec<Part> {
        let base = self.place.base().as_ptr();
        let file = maps.file_at(base.addr());
        let range = at..at + self.len;
        let ours = maps.within(&range).iter().filter_map(|area| {
            let from = area.addresses.start.max(range.start);
            let to = area.addresses.end.min(range.end);
            let offset = from - at;
            (area.file_at(from)? == file?.after(offset)).then(|| Part {
                at: std::ptr::with_exposed_provenance_mut(from),
                place: base.wrapping_add(offset),
                len: to - from,
                protection: area.protection(),
            })
        });
        ours.collect()
    }
}

/// How many areas have some of the memory at `place`.
fn mappings_of(place: &Region, maps: &Maps) -> usize {
    let Some(file) = maps.file_at(place.base().as_ptr().addr()) else {
        return 0;
    };
    let bytes = file.offset..file.offset + place.len() as u64;
    let mappings = maps.all().iter().filter(|area| {
        area.file.is_some_and(|there| {
            let end = there.offset + area.addresses.len() as u64;
            there.is_beside(&file) && there.offset < bytes.end && end > bytes.start
        })
    });
    mappings.count()
}
