//! A port of DPDK: what the devices on its queues share.

use crate::caller::{Caller, Pass};
use crate::error::DpdkOpenError;
use crate::kernel::{KernelInterface, Program, Sole};
use crate::leak::{Listener, XdpSocket};
use crate::ring::Side;
use crate::size::Size;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use trunkline_dataplane::PortError;
use trunkline_dpdk_eal::{self as eal, Eal};
use trunkline_dpdk_sys::{self as sys, Info, Link, Pool};

/// Frames of a ring of a queue.
pub(crate) const QUEUE_FRAMES: u16 = 1024;

/// The call that gives a driver what a queue is made of.
pub(crate) const ADD_QUEUE: &str = "rte_eth_rx_queue_setup";

/// Devices that ports of this process have.
static TAKEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A device that nobody else of this process gets, given back in the end. DPDK itself would add one
/// twice.
#[derive(Debug)]
struct Name(String);

impl Name {
    fn take(device: &str) -> Option<Self> {
        let name = device.to_owned();
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(name.clone()).then(|| Self(name))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(&self.0);
    }
}

/// A number that no pool or ring of this process had before.
pub(crate) fn unique() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// A text for C, up to a zero.
pub(crate) fn text(words: &str) -> CString {
    let words = words.split('\0').next().unwrap_or_default();
    CString::new(words).unwrap_or_default()
}

/// Frames in memory of DPDK, freed in the end.
#[derive(Debug)]
pub(crate) struct Frames(*mut Pool);

// SAFETY: pools are made for all threads, and what is done with this one here takes none.
unsafe impl Send for Frames {}
// SAFETY: the same.
unsafe impl Sync for Frames {}

impl Frames {
    /// A pool of so many frames with room for so many bytes.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new(
        _: Eal,
        device: &str,
        (frames, room): (u32, u16),
    ) -> Result<Self, DpdkOpenError> {
        let name = text(&format!("trunkline-frames{}", unique()));
        let mut code = 0;
        // SAFETY: a text that ends with a zero, and room for an error.
        let make = || unsafe { sys::trunkline_pool(name.as_ptr(), frames, room, &raw mut code) };
        let pool = eal::alone(make);
        if pool.is_null() {
            let call = "rte_pktmbuf_pool_create";
            return Err(DpdkOpenError::of_call(device, call, code));
        }
        Ok(Self(pool))
    }

    pub(crate) const fn pool(&self) -> *mut Pool {
        self.0
    }

    /// How many nobody has.
    #[cfg(test)]
    pub(crate) fn free(&self) -> u32 {
        // SAFETY: the pool lives.
        unsafe { sys::trunkline_pool_free_frames(self.0) }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: whoever has frames of it has it, too.
        eal::alone(|| unsafe { sys::trunkline_pool_free(self.0) });
    }
}

/// Whose frames the queues of a port have.
#[derive(Debug)]
pub(crate) enum Pools {
    /// Its own, one for each queue.
    Own(Vec<Frames>),
    /// Those of a ring, whose other end has some of them, too.
    Ring(Side),
}

/// A port of DPDK, removed in the end.
#[derive(Debug)]
pub(crate) struct DpdkPort {
    number: u16,
    name: String,
    // Removed behind the port: it has frames of them until then.
    pools: Pools,
    /// Of a driver that calls another end.
    caller: Option<Caller>,
    /// What its driver listens on, and forgets.
    listener: Option<Listener>,
    /// Sockets that its driver may leave open.
    sockets: Vec<XdpSocket>,
    /// The interface of the kernel that its driver is put on, and says nothing of.
    kernel: Option<KernelInterface>,
    /// What leads its frames to its driver.
    program: Option<Program>,
    /// Nobody else puts such a driver on it, until this one is removed.
    _sole: Option<Sole>,
    /// Free for others behind that.
    _taken: Option<Name>,
}

impl DpdkPort {
    /// The port of a device that DPDK is to add.
    ///
    /// # Errors
    /// There is no such device, or no driver for it.
    pub(crate) fn add(
        _: Eal,
        devargs: &str,
        name: &str,
        listener: Option<Listener>,
    ) -> Result<Self, DpdkOpenError> {
        let Some(taken) = Name::take(name) else {
            let device = name.to_owned();
            return Err(DpdkOpenError::Taken { device });
        };
        let (words, device) = (text(devargs), text(name));
        let mut number = 0;
        // SAFETY: texts that end with a zero, and room for a number.
        let add =
            || unsafe { sys::trunkline_add(words.as_ptr(), device.as_ptr(), &raw mut number) };
        match eal::alone(add) {
            0 => {
                let mut port = Self::new(number, name, Pools::Own(Vec::new()));
                port._taken = Some(taken);
                port.listener = listener;
                Ok(port)
            }
            code => Err(DpdkOpenError::of_call(name, "rte_dev_probe", code)),
        }
    }

    /// A port that was added.
    pub(crate) fn new(number: u16, name: &str, pools: Pools) -> Self {
        Self {
            number,
            name: name.to_owned(),
            pools,
            caller: None,
            listener: None,
            sockets: Vec::new(),
            kernel: None,
            program: None,
            _sole: None,
            _taken: None,
        }
    }

    pub(crate) const fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), DpdkOpenError> {
        match code {
            0 => Ok(()),
            _ => Err(DpdkOpenError::of_call(&self.name, call, code)),
        }
    }

    /// What there is to know of it.
    pub(crate) fn info(&self) -> Result<Info, DpdkOpenError> {
        let mut info = Info::default();
        // SAFETY: room for one.
        let code = unsafe { sys::trunkline_info(self.number, &raw mut info) };
        self.check("rte_eth_dev_info_get", code)?;
        Ok(info)
    }

    /// Sets up queues, and starts. Where the driver `calls` another end that may come later.
    ///
    /// # Errors
    /// The driver refuses something, or there is no memory for the frames.
    pub(crate) fn start(
        &mut self,
        eal: Eal,
        queues: u16,
        size: Size,
        calls: bool,
    ) -> Result<(), DpdkOpenError> {
        if let Pools::Own(pools) = &mut self.pools {
            for _ in 0..queues {
                pools.push(Frames::new(eal, &self.name, size.pool())?);
            }
        }
        // SAFETY: nobody has a queue of it yet.
        let code = unsafe { sys::trunkline_configure(self.number, queues, size.told) };
        self.check("rte_eth_dev_configure", code)?;
        for queue in 0..queues {
            let pool = self.pool(queue);
            // SAFETY: it is configured, and removed before its pools are freed.
            let code = unsafe { sys::trunkline_add_queue(self.number, queue, QUEUE_FRAMES, pool) };
            self.check(ADD_QUEUE, code)?;
        }
        // SAFETY: all queues are set up.
        let code = unsafe { sys::trunkline_start(self.number) };
        match calls {
            // Who is called may come later.
            true => self.caller = Some(Caller::new(code == 0)),
            false => self.check("rte_eth_dev_start", code)?,
        }
        // SAFETY: the port lives. Many drivers know no groups, and give everything.
        unsafe { sys::trunkline_hear_multicast(self.number) };
        Ok(())
    }

    /// The same for a driver that leaves sockets open when its device is removed. Nobody may open
    /// another device meanwhile.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn start_xdp(
        &mut self,
        eal: Eal,
        queues: u16,
        size: Size,
    ) -> Result<(), DpdkOpenError> {
        let before = XdpSocket::all();
        let started = self.start(eal, queues, size, false);
        let after = XdpSocket::all().into_iter();
        self.sockets = after.filter(|socket| !before.contains(socket)).collect();
        started
    }

    /// Has it ask the kernel about its link, and whether its program is there.
    pub(crate) fn watch(&mut self, interface: KernelInterface, program: Option<Program>) {
        self.kernel = Some(interface);
        self.program = program;
    }

    /// It has that interface to itself.
    pub(crate) fn keep(&mut self, sole: Sole) {
        self._sole = Some(sole);
    }

    /// Whether there is still what its driver is put on.
    ///
    /// # Errors
    /// The interface is gone, or its XDP program: no driver says so.
    pub(crate) fn check_interface(&self) -> Result<(), PortError> {
        if let Some(kernel) = &self.kernel
            && kernel.is_gone()
        {
            let interface = kernel.name();
            return Err(PortError::Gone { interface });
        }
        if self.program.as_ref().is_some_and(Program::is_gone) {
            return Err(PortError::System {
                call: "the XDP program of net_af_xdp",
                source: io::Error::other("somebody removed it from the interface"),
            });
        }
        Ok(())
    }

    /// Where the frames of a queue come from.
    pub(crate) fn frames(&self, queue: u16) -> &Frames {
        match &self.pools {
            Pools::Own(pools) => &pools[usize::from(queue)],
            Pools::Ring(side) => side.frames(queue),
        }
    }

    pub(crate) fn pool(&self, queue: u16) -> *mut Pool {
        self.frames(queue).pool()
    }

    /// Gives it another address of the link, if it can have one; drivers without hardware take
    /// what comes.
    pub(crate) fn set_mac(&self, mac: [u8; 6]) {
        // SAFETY: six bytes.
        let code = unsafe { sys::trunkline_set_mac(self.number, mac.as_ptr()) };
        if code != 0 {
            tracing::debug!(device = self.name, code, "the driver keeps its address");
        }
    }

    /// Whoever uses a queue has one. `None`: it is not started.
    #[inline]
    pub(crate) fn pass(&self) -> Option<Pass<'_>> {
        match &self.caller {
            None => Some(Pass::ALWAYS),
            Some(caller) => caller.pass(),
        }
    }

    /// Whether there is something to [`tend`](Self::tend).
    pub(crate) const fn calls(&self) -> bool {
        self.caller.is_some()
    }

    /// Calls the other end, if it is time. Nobody here may have a pass.
    pub(crate) fn tend(&self) {
        if let Some(caller) = &self.caller {
            caller.tend(self.number);
        }
    }

    /// How its link is.
    pub(crate) fn link(&self) -> Option<Link> {
        if self.pass().is_none() {
            return Some(Link::default());
        }
        let mut link = Link::default();
        // SAFETY: room for one.
        let code = unsafe { sys::trunkline_link(self.number, &raw mut link) };
        if self.kernel.as_ref().is_some_and(|kernel| !kernel.works()) {
            link.is_up = 0;
        }
        (code == 0).then_some(link)
    }

    /// Frames that it had no room for.
    pub(crate) fn missed(&self) -> u64 {
        let mut missed = 0;
        // SAFETY: room for one.
        unsafe { sys::trunkline_missed(self.number, &raw mut missed) };
        missed
    }
}

impl Drop for DpdkPort {
    fn drop(&mut self) {
        // Before the driver forgets it.
        self.listener = None;
        // SAFETY: devices on its queues have it, and are gone.
        let code = eal::alone(|| unsafe { sys::trunkline_remove(self.number) });
        if code != 0 {
            let (device, said) = (&self.name, eal::error_text(code));
            tracing::warn!(device, said, "DPDK does not remove a device");
        }
        self.sockets.drain(..).for_each(XdpSocket::close);
    }
}
