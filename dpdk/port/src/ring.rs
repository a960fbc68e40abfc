//! `ring`: two ends in one process, joined by a ring each way for each queue. Whoever opens one
//! first waits for who opens it next.

use crate::error::DpdkOpenError;
use crate::port::{DpdkPort, Frames, Pools, QUEUE_FRAMES, text, unique};
use crate::size::Size;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use trunkline_dpdk_eal::{self as eal, Eal};
use trunkline_dpdk_sys as sys;

/// Pairs of which an end may be free, by name.
static PAIRS: Mutex<BTreeMap<String, Weak<Pair>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A ring of DPDK, freed in the end.
#[derive(Debug)]
struct Ring(*mut sys::Ring);

// SAFETY: what is done with it here takes no certain thread.
unsafe impl Send for Ring {}
// SAFETY: the same.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(device: &str) -> Result<Self, DpdkOpenError> {
        let name = text(&format!("trunkline-ring{}", unique()));
        let mut code = 0;
        // SAFETY: a text that ends with a zero, and room for an error.
        let make =
            || unsafe { sys::trunkline_ring(name.as_ptr(), QUEUE_FRAMES.into(), &raw mut code) };
        let ring = eal::alone(make);
        if ring.is_null() {
            return Err(DpdkOpenError::of_call(device, "rte_ring_create", code));
        }
        Ok(Self(ring))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: ports that use it have it, and are gone.
        eal::alone(|| unsafe { sys::trunkline_ring_free(self.0) });
    }
}

/// Both ends.
#[derive(Debug)]
struct Pair {
    /// To each end, one for each queue.
    rings: [Vec<Ring>; 2],
    /// Of each end, one for each queue. What is in the rings is freed with them.
    frames: [Vec<Frames>; 2],
    mtu: u32,
    taken: Mutex<[bool; 2]>,
}

impl Pair {
    fn new(eal: Eal, name: &str, queues: u16, size: Size) -> Result<Self, DpdkOpenError> {
        let rings = || {
            (0..queues)
                .map(|_| Ring::new(name))
                .collect::<Result<_, _>>()
        };
        let frames = || {
            let frames = (0..queues).map(|_| Frames::new(eal, name, size.pool()));
            frames.collect::<Result<_, _>>()
        };
        Ok(Self {
            rings: [rings()?, rings()?],
            frames: [frames()?, frames()?],
            mtu: size.mtu,
            taken: Mutex::default(),
        })
    }

    fn take(self: &Arc<Self>) -> Option<Side> {
        let mut taken = lock(&self.taken);
        let end = taken.iter().position(|is_taken| !is_taken)?;
        taken[end] = true;
        let pair = Arc::clone(self);
        Some(Side { pair, end })
    }
}

/// One end, given back in the end.
#[derive(Debug)]
pub(crate) struct Side {
    pair: Arc<Pair>,
    end: usize,
}

impl Side {
    pub(crate) fn frames(&self, queue: u16) -> &Frames {
        &self.pair.frames[self.end][usize::from(queue)]
    }

    /// The rings to that end.
    fn rings(&self, end: usize) -> Vec<*mut sys::Ring> {
        self.pair.rings[end].iter().map(|ring| ring.0).collect()
    }

    /// Both ends have to be alike.
    fn check(&self, device: &str, queues: u16, mtu: u32) -> Result<(), DpdkOpenError> {
        let other = |what| DpdkOpenError::OtherEnd {
            device: device.to_owned(),
            what,
        };
        let its = self.pair.rings[0].len();
        if its != usize::from(queues) {
            return Err(other(format!("{its} workers, and this one {queues}")));
        }
        if self.pair.mtu != mtu {
            let its = self.pair.mtu;
            return Err(other(format!("an MTU of {its}, and this one of {mtu}")));
        }
        Ok(())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        lock(&self.pair.taken)[self.end] = false;
    }
}

/// The free end of the pair of that name; else one of a new pair.
fn side(eal: Eal, name: &str, queues: u16, size: Size) -> Result<Side, DpdkOpenError> {
    let mut pairs = lock(&PAIRS);
    let known = pairs.get(name).and_then(Weak::upgrade);
    if let Some(side) = known.and_then(|pair| pair.take()) {
        side.check(name, queues, size.mtu)?;
        return Ok(side);
    }
    let pair = Arc::new(Pair::new(eal, name, queues, size)?);
    pairs.insert(name.to_owned(), Arc::downgrade(&pair));
    Ok(pair.take().expect("both ends of a new pair are free"))
}

/// A port on one end, whose queues are for frames with room for so many bytes.
///
/// # Errors
/// There is no memory for it, or the other end is another.
pub(crate) fn open(
    eal: Eal,
    name: &str,
    queues: u16,
    size: Size,
) -> Result<DpdkPort, DpdkOpenError> {
    let side = side(eal, name, queues, size)?;
    let (mut from, mut to) = (side.rings(side.end), side.rings(1 - side.end));
    let (count, device) = (u32::from(queues), text(&format!("trunkline{}", unique())));
    let mut number = 0;
    let (rx, tx) = (from.as_mut_ptr(), to.as_mut_ptr());
    // SAFETY: so many rings each, which the port has until it is removed.
    let join =
        || unsafe { sys::trunkline_join_rings(device.as_ptr(), rx, tx, count, &raw mut number) };
    match eal::alone(join) {
        0 => Ok(DpdkPort::new(number, name, Pools::Ring(side))),
        code => Err(DpdkOpenError::of_call(name, "rte_eth_from_rings", code)),
    }
}
