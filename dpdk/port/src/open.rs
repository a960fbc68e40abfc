//! Opens devices of DPDK.

use crate::error::DpdkOpenError;
use crate::kernel::{KernelInterface, Program, Sole};
use crate::port::DpdkPort;
use crate::size::{self, Size};
use crate::spec::{DeviceSpec, DpdkSpec, Driver};
use crate::{DpdkDevice, descriptors, memif, ring};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trunkline_dpdk_eal::{self as eal, Arguments, Eal};
use trunkline_dpdk_sys::Info;
use trunkline_wire::{Mac, Workers};

/// Descriptors that starting takes, and AF_XDP with its libraries, and for each queue. Where they
/// run out, DPDK says what it cannot have, and not why.
const DESCRIPTORS: usize = 6;
const XDP_DESCRIPTORS: usize = 14;
const XDP_DESCRIPTORS_PER_QUEUE: usize = 2;
/// How long the kernel may take to let go of a queue, and how often it is looked whether it did.
const LET_GO: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// Devices are opened one after the other.
static OPENING: Mutex<()> = Mutex::new(());

impl DpdkDevice {
    /// Opens a device for each worker of a node, on a queue each of one port.
    ///
    /// # Errors
    /// See [`DpdkOpenError`].
    pub fn open_group(spec: &DpdkSpec, workers: Workers) -> Result<Vec<Self>, DpdkOpenError> {
        let _turn = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let device = spec.device();
        check_descriptors(device, workers)?;
        let pci = (device.driver() == Driver::Pci).then(|| device.devargs(&[]));
        let eal = eal::start(Arguments::new(pci.as_deref(), spec.arguments()))?;
        // What drivers logged before is not about this one.
        eal::log();
        let queues = u16::from(workers.count());
        let wanted = size::wanted_mtu(spec)?;
        let (port, size) = match device.driver() {
            Driver::Ring => start_ring(eal, device, queues, wanted)?,
            Driver::AfXdp => start_xdp(eal, device, workers, wanted)?,
            _ => start(eal, device, workers, wanted)?,
        };
        let info = port.info()?;
        let mac = mac(spec, &port, &info);
        let max_frame = size.frame() as usize;
        let port = Arc::new(port);
        let open = |queue| {
            let mut device = Self::new(Arc::clone(&port), queue, (size.mtu, max_frame), mac);
            device.is_beside_kernel = spec.device().driver() == Driver::AfPacket;
            device
        };
        Ok((0..queues).map(open).collect())
    }
}

/// Looks whether there are as many descriptors as starting takes.
fn check_descriptors(device: &DeviceSpec, workers: Workers) -> Result<(), DpdkOpenError> {
    let needed = match device.driver() {
        Driver::AfXdp => XDP_DESCRIPTORS + XDP_DESCRIPTORS_PER_QUEUE * usize::from(workers.count()),
        _ => DESCRIPTORS,
    };
    let free = descriptors::free();
    if free >= needed {
        return Ok(());
    }
    let device = device.name().to_owned();
    Err(DpdkOpenError::Descriptors {
        device,
        needed,
        free,
    })
}

type Started = (DpdkPort, Size);

/// A port on an end of a ring.
fn start_ring(
    eal: Eal,
    device: &DeviceSpec,
    queues: u16,
    wanted: Option<u32>,
) -> Result<Started, DpdkOpenError> {
    let mut size = Size::of(device, wanted);
    let mut port = ring::open(eal, &device.to_string(), queues, size)?;
    size.fit(device, &port.info()?)?;
    port.start(eal, queues, size, false)?;
    Ok((port, size))
}

/// A port on a device that DPDK is to add.
fn start(
    eal: Eal,
    device: &DeviceSpec,
    workers: Workers,
    wanted: Option<u32>,
) -> Result<Started, DpdkOpenError> {
    let devargs = devargs(device, workers, wanted);
    memif::remove_stale(device);
    memif::check(device)?;
    let added = DpdkPort::add(eal, &devargs, device.name(), memif::listener(device));
    let mut port = added.map_err(|error| memif::explain(device, error))?;
    let info = port.info()?;
    check_queues(&port, &info, workers)?;
    let wanted = wanted.or_else(|| size::own_mtu(device.driver(), &info));
    let mut size = Size::of(device, wanted);
    size.fit(device, &info)?;
    let queues = workers.count().into();
    match device.driver() {
        Driver::AfXdp => port.start_xdp(eal, queues, size)?,
        _ => port.start(eal, queues, size, memif::calls(device))?,
    }
    if let Some(name) = device.argument("iface") {
        let watched = watch(&mut port, name, device.driver());
        watched.map_err(|source| DpdkOpenError::of_interface(name, source))?;
    }
    Ok((port, size))
}

/// Has a port look after the interface that its driver is put on.
fn watch(port: &mut DpdkPort, name: &str, driver: Driver) -> io::Result<()> {
    let interface = KernelInterface::new(name)?;
    let program = match driver {
        Driver::AfXdp => Program::at(&interface)?,
        _ => None,
    };
    port.watch(interface, program);
    Ok(())
}

/// A port on an interface whose frames all come to it: of two, the one that ends first would take
/// the frames from the other.
fn start_xdp(
    eal: Eal,
    device: &DeviceSpec,
    workers: Workers,
    wanted: Option<u32>,
) -> Result<Started, DpdkOpenError> {
    let name = device.argument("iface").unwrap_or_default();
    let taken = Sole::take(name).map_err(|source| DpdkOpenError::of_interface(name, source))?;
    let Some(sole) = taken else {
        let interface = name.to_owned();
        return Err(DpdkOpenError::InterfaceTaken { interface });
    };
    let (mut port, size) = start_again(|| start(eal, device, workers, wanted))?;
    port.keep(sole);
    Ok((port, size))
}

/// The kernel lets go of a queue of AF_XDP some time after its socket was closed; until then who
/// opens it again is refused.
fn start_again(
    mut start: impl FnMut() -> Result<Started, DpdkOpenError>,
) -> Result<Started, DpdkOpenError> {
    let until = Instant::now() + LET_GO;
    loop {
        let started = start();
        let may_pass = matches!(
            started,
            Err(DpdkOpenError::Call {
                call: crate::port::ADD_QUEUE,
                ..
            })
        );
        if !may_pass || Instant::now() > until {
            return started;
        }
        std::thread::sleep(PAUSE);
    }
}

/// What the driver is told, beside what the user told it.
fn devargs(device: &DeviceSpec, workers: Workers, wanted: Option<u32>) -> String {
    let queues = workers.count().to_string();
    let frame = || Size::of(device, wanted).room.to_string();
    let defaults = match device.driver() {
        Driver::AfPacket => vec![
            ("qpairs", queues),
            ("qdisc_bypass", "1".to_owned()),
            ("blocksz", size::PACKET_BLOCK.to_string()),
            ("framesz", frame()),
        ],
        Driver::AfXdp => vec![("queue_count", queues)],
        Driver::Memif => {
            // Each frame lies in one piece.
            vec![("bsize", frame())]
        }
        _ => Vec::new(),
    };
    device.devargs(&defaults)
}

fn check_queues(port: &DpdkPort, info: &Info, workers: Workers) -> Result<(), DpdkOpenError> {
    let queues = info.max_rx_queues.min(info.max_tx_queues);
    if queues >= workers.count().into() {
        return Ok(());
    }
    Err(DpdkOpenError::Queues {
        device: port.name().to_owned(),
        queues,
        workers: workers.count(),
    })
}

/// The address of the link of a port: what the user says, else its own, else one that no other
/// process has.
fn mac(spec: &DpdkSpec, port: &DpdkPort, info: &Info) -> Mac {
    if let Some(mac) = spec.mac() {
        port.set_mac(mac.0);
        return mac;
    }
    // A loop has none, and is the kernel's.
    if info.mac != [0; 6] || spec.device().driver() == Driver::AfPacket {
        return Mac(info.mac);
    }
    let [a, b, c, d] = std::process::id().to_be_bytes();
    // The second bit: nobody gave it out (IEEE 802, 8.2).
    Mac([2, port.number() as u8, a, b, c, d])
}
