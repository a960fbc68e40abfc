//! Devices of DPDK that copy memory.

use crate::engine::Job;
use crate::offload::{Device, Outcome};
use std::collections::VecDeque;
use std::ffi::{CString, NulError};
use trunkline_dpdk_eal::{self as eal, Arguments, Eal, EalError};
use trunkline_dpdk_sys::dma::{self, DmaInfo};

/// The environment, without huge pages: it has descriptors alone, as data is wherever the program
/// has it.
const MEMORY: [&str; 3] = ["--no-huge", "-m", "64"];

/// Sets the environment up for engines, with words for its command line, which are the same each
/// time. A process has one, so ports of `trunkline-dpdk` in it say these arguments, too.
///
/// # Errors
/// It does not start, or runs with other arguments.
pub fn set_up(words: &[&str]) -> Result<Eal, EalError> {
    let given: Vec<_> = MEMORY
        .iter()
        .chain(words)
        .map(ToString::to_string)
        .collect();
    eal::start(Arguments::new(None, &given))
}

/// Why there is no device.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmadevError {
    /// The text has a zero in it.
    #[error("the name of a device has no zero in it")]
    Name(#[from] NulError),
    /// DPDK refused something.
    #[error("{step} of {name}: {said}")]
    Refused {
        /// What was to be done.
        step: &'static str,
        /// The device.
        name: String,
        /// What DPDK said.
        said: String,
    },
    /// The device does not suit.
    #[error("{name} does not copy between any two addresses of this process: {info:?}")]
    Unsuitable {
        /// The device.
        name: String,
        /// What it says of itself.
        info: DmaInfo,
    },
}

/// A dmadev with one channel.
#[derive(Debug)]
pub struct Dmadev {
    id: i16,
    /// A virtual device goes when this does.
    added: Option<CString>,
    /// Numbers of the jobs that it has: it reports them in their order. Never more than `DEPTH`.
    numbers: VecDeque<u64>,
    /// Whether it refused a kick.
    owes_kick: bool,
}

impl Dmadev {
    /// The device that `devargs` name. One that is not there yet is added, as "dma_skeleton" or
    /// "dma_skeleton,lcore=1".
    ///
    /// # Errors
    /// There is none, it does not start, or it takes no addresses of a process.
    pub fn open(_: Eal, devargs: &str) -> Result<Self, DmadevError> {
        let text = CString::new(devargs)?;
        let name = devargs.split_once(',').map_or(devargs, |(name, _)| name);
        let c_name = CString::new(name)?;
        let checked = |step, code: i32| match code {
            0.. => Ok(code),
            _ => Err(DmadevError::Refused {
                step,
                name: name.to_owned(),
                said: eal::error_text(code),
            }),
        };
        // SAFETY: the environment is set up; a text that ends with a zero.
        let mut id = unsafe { dma::trunkline_dma_find(c_name.as_ptr()) };
        let mut added = None;
        if id < 0 {
            // SAFETY: as above.
            checked("adding", unsafe { dma::trunkline_dma_add(text.as_ptr()) })?;
            // SAFETY: as above.
            id = checked("finding", unsafe {
                dma::trunkline_dma_find(c_name.as_ptr())
            })?;
            added = Some(c_name);
        }
        // Numbers of devices have this type in DPDK, too.
        let id = id as i16;
        let mut info = DmaInfo::default();
        // SAFETY: the environment is set up; room for an info.
        let code = unsafe { dma::trunkline_dma_info(id, &raw mut info) };
        checked("asking", code)?;
        let suits = info.depth > 0 && info.takes_any_address == 1 && info.copies == 1;
        if !suits {
            let name = name.to_owned();
            return Err(DmadevError::Unsuitable { name, info });
        }
        // SAFETY: the environment is set up, and nobody has the device: another `open` of a
        // started one is refused.
        checked("starting", unsafe { dma::trunkline_dma_start(id) })?;
        Ok(Self {
            id,
            added,
            numbers: VecDeque::with_capacity(dma::DEPTH),
            owes_kick: false,
        })
    }
}

// SAFETY: DPDK has the addresses of a copy from the call that takes it until it is polled; what it
// refuses it does not keep.
unsafe impl Device for Dmadev {
    fn depth(&self) -> usize {
        dma::DEPTH
    }

    unsafe fn push(&mut self, number: u64, job: &Job) -> bool {
        let length = match u32::try_from(job.length()) {
            Ok(length) if length > 0 && self.numbers.len() < dma::DEPTH => length,
            _ => return false,
        };
        let (from, to) = (job.source().cast(), job.destination().cast());
        // SAFETY: the device is started and this thread's, as `self` is; the caller's promise.
        let code = unsafe { dma::trunkline_dma_copy(self.id, from, to, length) };
        let is_taken = code >= 0;
        if is_taken {
            self.numbers.push_back(number);
        }
        is_taken
    }

    fn kick(&mut self) {
        // SAFETY: the device is started, and this thread's.
        self.owes_kick = unsafe { dma::trunkline_dma_kick(self.id) } < 0;
    }

    fn reap(&mut self, mut over: impl FnMut(u64, Outcome)) {
        if self.owes_kick {
            self.kick();
        }
        let mut failed = [0_u8; dma::DEPTH];
        // SAFETY: the device is started, and this thread's; there is room for so many.
        let count = unsafe { dma::trunkline_dma_poll(self.id, failed.as_mut_ptr()) };
        let numbers = self.numbers.drain(..usize::from(count));
        for (number, failed) in numbers.zip(failed) {
            let outcome = match failed {
                0 => Outcome::Copied,
                _ => Outcome::Failed,
            };
            over(number, outcome);
        }
    }
}

impl Drop for Dmadev {
    fn drop(&mut self) {
        let added = self.added.as_ref();
        let added = added.map_or(std::ptr::null(), |name| name.as_ptr());
        // SAFETY: nobody else has it. `Offload` waits for its copies before it drops it.
        unsafe { dma::trunkline_dma_close(self.id, added) };
    }
}
