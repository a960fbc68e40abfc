//! Loads the program and attaches it (bpf(2)).

use super::error::XdpOpenError;
use super::program::{Instruction, program};
use super::socket::Place;
use std::ffi::c_long;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Commands of bpf(2), and what they are told.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_DELETE_ELEM: i32 = 3;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const LINK_DETACH: i32 = 34;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The program may be given a frame that lies in several buffers, and sees the first.
const PROG_HAS_FRAGS: u32 = 1 << 5;
/// It runs in the kernel above the driver, or in the driver.
const MODE_GENERIC: u32 = 1 << 1;
const MODE_NATIVE: u32 = 1 << 2;

/// What a command is told: the first fields of `union bpf_attr`, which the kernel takes as if
/// zeroes followed.
///
/// # Safety
/// A type of plain integers without gaps, whose addresses lead to what the command expects.
unsafe trait Attributes {}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
}

// SAFETY: four words, no address.
unsafe impl Attributes for MapCreate {}

#[repr(C)]
struct MapUpdate {
    map: u32,
    gap: u32,
    key: u64,
    value: u64,
    flags: u64,
}

// SAFETY: no gaps; made in `Steering::update` only, with addresses of a key and a value.
unsafe impl Attributes for MapUpdate {}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

// SAFETY: no gaps; made in `load` only, with addresses of instructions and of a string.
unsafe impl Attributes for ProgLoad {}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach: u32,
    flags: u32,
}

// SAFETY: four words, no address.
unsafe impl Attributes for LinkCreate {}

#[repr(C)]
struct LinkDetach {
    link: u32,
}

// SAFETY: a word, no address.
unsafe impl Attributes for LinkDetach {}

fn bpf<A: Attributes>(command: i32, attributes: &A) -> io::Result<c_long> {
    let address: *const A = attributes;
    // SAFETY: `Attributes` says that the kernel may read these, and what they lead to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, address, size_of::<A>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Runs a command that gives a descriptor.
fn make<A: Attributes>(command: i32, attributes: &A) -> io::Result<OwnedFd> {
    let descriptor = bpf(command, attributes)? as RawFd;
    // SAFETY: the command just made it, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A program at an interface. It is detached when this is dropped, or the process ends.
#[derive(Debug)]
pub(super) struct Steering {
    /// Holds the program there.
    link: OwnedFd,
    map: OwnedFd,
    is_native: bool,
    takes_several: bool,
}

impl Steering {
    /// Attaches a program for packets to `address`, for queues below `queues`: in the driver, or
    /// else above it.
    pub(super) fn attach(
        place: &Place,
        address: IpAddr,
        queues: u32,
    ) -> Result<Self, XdpOpenError> {
        let map = MapCreate {
            kind: MAP_TYPE_XSKMAP,
            key_bytes: size_of::<u32>() as u32,
            value_bytes: size_of::<u32>() as u32,
            entries: queues,
        };
        let map = make(MAP_CREATE, &map)
            .map_err(|error| XdpOpenError::of("bpf(BPF_MAP_CREATE)", error))?;
        let code = program(address, map.as_raw_fd());
        let failed = |error| XdpOpenError::of("bpf(BPF_PROG_LOAD)", error);
        let (program, takes_several) = match load(&code, PROG_HAS_FRAGS) {
            Ok(program) => (program, true),
            // A kernel before 5.18 does not know the flag.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (load(&code, 0).map_err(failed)?, false)
            }
            Err(error) => return Err(failed(error)),
        };
        let (index, interface) = (place.index, place.name);
        let (link, is_native) = match link(&program, index, MODE_NATIVE) {
            Err(source) if !is_final(&source) => {
                tracing::debug!(%interface, %source, "the driver takes no XDP program");
                (link(&program, index, MODE_GENERIC), false)
            }
            native => (native, true),
        };
        let link = link.map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => XdpOpenError::ProgramTaken { interface },
            Some(libc::EPERM | libc::EACCES) => XdpOpenError::NoPrivilege {
                call: "bpf(BPF_LINK_CREATE)",
            },
            _ => XdpOpenError::NoProgram { interface, source },
        })?;
        Ok(Self {
            link,
            map,
            is_native,
            takes_several,
        })
    }

    /// Leads what the program picks of a queue to a socket, which is bound to that queue.
    pub(super) fn lead(&self, queue: u32, socket: RawFd) -> io::Result<()> {
        self.update(MAP_UPDATE_ELEM, queue, socket as u32)
    }

    /// Leaves a queue to the kernel again. When the socket is gone that is so anyway; but a process
    /// that is just being made may still have a copy of it.
    pub(super) fn leave(&self, queue: u32) {
        let _ = self.update(MAP_DELETE_ELEM, queue, 0);
    }

    fn update(&self, command: i32, queue: u32, value: u32) -> io::Result<()> {
        let (key, value): (*const u32, *const u32) = (&raw const queue, &raw const value);
        let update = MapUpdate {
            map: self.map.as_raw_fd() as u32,
            gap: 0,
            key: key as u64,
            // There is none to delete.
            value: if command == MAP_UPDATE_ELEM {
                value as u64
            } else {
                0
            },
            flags: 0,
        };
        bpf(command, &update).map(|_| ())
    }

    /// Whether it runs in the driver.
    pub(super) const fn is_native(&self) -> bool {
        self.is_native
    }

    /// Whether it takes frames that lie in several buffers.
    pub(super) const fn takes_several(&self) -> bool {
        self.takes_several
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        // That closing the link detaches is true only once nobody has it: a process that is just
        // being made may, until it runs its own program.
        let link = self.link.as_raw_fd() as u32;
        let _ = bpf(LINK_DETACH, &LinkDetach { link });
    }
}

fn load(code: &[Instruction], flags: u32) -> io::Result<OwnedFd> {
    let licence = c"Dual MIT/GPL";
    let program = ProgLoad {
        kind: PROG_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        licence: licence.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags,
        name: *b"trunkline\0\0\0\0\0\0\0",
        interface: 0,
        attach: ATTACH_XDP,
    };
    make(PROG_LOAD, &program)
}

/// Whether the other mode fails for the same reason.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES)
    )
}

fn link(program: &OwnedFd, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let link = LinkCreate {
        program: program.as_raw_fd() as u32,
        interface,
        attach: ATTACH_XDP,
        flags,
    };
    super::socket::unless_busy(|| make(LINK_CREATE, &link))
}
