//! A program that speaks to a service without the library, and keeps to no rule.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use trunkline_host::control::answers::{CqCreated, MemoryAllocated, PdAllocated};
use trunkline_host::control::attributes::{Reason, RingKind};
use trunkline_host::control::requests::{
    AllocMemory, AllocPd, CreateCq, CreateQp, Hello, Magic, RequestRing,
};
use trunkline_host::control::{Answer, MAX_MESSAGE, Request, Text, VERSION};
use trunkline_host::socket::{recv_with_fds, send_with_fds};
use trunkline_host::{Handle, Piece, PieceName, SegmentTable};
use trunkline_qpmap::QpType;

/// How long a service may take for an answer.
const LONG: Duration = Duration::from_secs(10);

/// Numbers that only look random.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The raw end of a socket to a service.
pub(crate) struct Raw {
    socket: OwnedFd,
    number: u32,
    segments: SegmentTable,
    buffer: Box<[u8; MAX_MESSAGE]>,
    /// The memory of all rings that it asked for.
    pub(crate) pieces: Vec<Piece>,
    /// The files of its segments.
    pub(crate) files: Vec<OwnedFd>,
    /// What came with answers and is no segment.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Raw {
    /// Opens the socket at an abstract path, and says nothing yet.
    pub(crate) fn connect(path: &str) -> Self {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let name = path.strip_prefix('@').unwrap();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        connect(&socket, &address).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(LONG)).unwrap();
        set_socket_timeout(&socket, Timeout::Send, Some(LONG)).unwrap();
        Self {
            socket,
            number: 0,
            segments: SegmentTable::new(),
            buffer: Box::new([0; MAX_MESSAGE]),
            pieces: Vec::new(),
            files: Vec::new(),
            descriptors: Vec::new(),
        }
    }

    /// One that is attached, without access to its memory.
    pub(crate) fn attach(path: &str) -> Self {
        let mut raw = Self::connect(path);
        let welcome = raw.ask(hello(VERSION));
        assert!(matches!(welcome, Answer::Welcome(_)), "{welcome:?}");
        raw
    }

    /// Sends bytes and descriptors, whatever they are.
    pub(crate) fn send(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        send_with_fds(self.socket.as_fd(), bytes, descriptors).unwrap();
    }

    /// Sends bytes alone, be they more than a message has.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(&self.socket, bytes, flags).unwrap();
    }

    /// The socket itself.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a request and does not wait. False: the service is gone, or does not read.
    pub(crate) fn say(&mut self, request: impl Into<Request>) -> bool {
        self.number += 1;
        let bytes = request.into().to_bytes(self.number);
        send_with_fds(self.socket.as_fd(), &bytes, &[]).is_ok()
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(&mut self, request: impl Into<Request>) -> Answer {
        assert!(self.say(request), "the service reads");
        let (number, answer) = self.hear().expect("the service answers");
        assert_eq!(number, self.number, "{answer:?}");
        answer
    }

    /// The next message of the service; `None`: it closed its end.
    pub(crate) fn hear(&mut self) -> Option<(u32, Answer)> {
        let received = recv_with_fds(self.socket.as_fd(), &mut self.buffer);
        let received = received.expect("it answers, or closes its end")?;
        let (number, answer) = Answer::parse(&self.buffer[..received.bytes]).unwrap();
        let mut descriptors = received.descriptors.into_iter().flatten();
        match answer {
            Answer::RingGiven(given) => self.map(given.piece, given.new_segment, &mut descriptors),
            Answer::MemoryAllocated(MemoryAllocated {
                piece, new_segment, ..
            }) => self.map(piece, new_segment, &mut descriptors),
            _ => {}
        }
        self.descriptors.extend(descriptors);
        Some((number, answer))
    }

    fn map(
        &mut self,
        name: PieceName,
        bytes: Option<u64>,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) {
        if let Some(bytes) = bytes {
            let file = descriptors.next().expect("a segment comes with its file");
            self.segments
                .add(name.segment, file.as_fd(), bytes)
                .unwrap();
            self.files.push(file);
        }
        self.pieces.push(self.segments.resolve(name).unwrap());
    }

    /// Reads up to the last words of the service, which gives its reason in them.
    pub(crate) fn end(&mut self) -> (Reason, String) {
        let mut last = None;
        while let Some((_, answer)) = self.hear() {
            last = Some(answer);
        }
        match last {
            Some(Answer::Refused(why)) => (why.reason, why.text.as_str().into()),
            Some(Answer::Detached(why)) => (why.reason, why.text.as_str().into()),
            other => panic!("no reason came, but {other:?}"),
        }
    }

    pub(crate) fn pd(&mut self) -> Handle {
        match self.ask(AllocPd {}) {
            Answer::PdAllocated(PdAllocated { pd, .. }) => pd,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn cq(&mut self, depth: u32) -> Handle {
        match self.ask(CreateCq { depth }) {
            Answer::CqCreated(CqCreated { cq, .. }) => cq,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ring(&mut self, ring: RingKind, object: Option<Handle>, worker: u8) -> Answer {
        self.ask(RequestRing {
            ring,
            object,
            worker,
        })
    }

    pub(crate) fn memory(&mut self, words: u32) -> Answer {
        self.ask(AllocMemory { words })
    }
}

/// The first message of a program of that version.
pub(crate) fn hello(version: u32) -> Hello {
    Hello {
        magic: Magic,
        version,
        name: Text::clipped("raw"),
    }
}

/// A request for an RC QP.
pub(crate) fn qp_of(pd: Handle, cq: Handle, srq: Option<Handle>) -> CreateQp {
    CreateQp {
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq,
        kind: QpType::Rc,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: 0,
        signal_all: false,
        complete_last_wqe: false,
        worker: None,
    }
}

/// A descriptor whose close waits until the other end is gone, or for a minute.
pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    let linger = Some(Duration::from_secs(60));
    rustix::net::sockopt::set_socket_linger(&socket, linger).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    (socket.into(), other)
}

/// This process's memory, as a program sends it.
pub(crate) fn own_memory() -> File {
    let mut options = File::options();
    let options = options.read(true).write(true);
    options.open("/proc/self/mem").unwrap()
}

/// Sends a message as it is, with as many descriptors as there are.
pub(crate) fn send_any(socket: BorrowedFd<'_>, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut room = [std::mem::MaybeUninit::uninit(); 256];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    assert!(pushed, "the room is enough");
    let message = [std::io::IoSlice::new(message)];
    // The service may have closed its end.
    let _ = sendmsg(socket, &message, &mut ancillary, SendFlags::NOSIGNAL);
}
