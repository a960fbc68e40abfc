//! Work requests as programs write them.

use trunkline_conn::mem::{AtomicOp, Sge};
use trunkline_conn::work::{BindMw, Datagram, OwnOp, Remote, SendFlags, SendOp};
use trunkline_wire::Rkey;

/// Route of a request that goes where its QP is bound.
pub const OWN_BINDING: u32 = 0;

/// A send work request, as a program posts it (`struct ibv_send_wr`).
///
/// Its constructor says what to do; what is not said after that is 0, empty or not set:
///
/// ```
/// use trunkline_conn::mem::Sge;
/// use trunkline_conn::work::{Remote, SendFlags};
/// use trunkline_qpmap::wqe::SendWr;
///
/// let sges = [Sge::default()];
/// let write = SendWr::write(Remote::default()).wr_id(7).sges(&sges).signaled().fence();
/// assert_eq!(write.flags, SendFlags::SIGNALED | SendFlags::FENCE);
/// let send = SendWr::send().inline(b"hello");
/// assert!(send.sges.is_empty());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Cookie for its completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How. [`SendFlags::INLINE`] goes without saying where `inline` is given.
    pub flags: SendFlags,
    /// From where, or, for READ and atomics, to where. Empty where `inline` is given.
    pub sges: &'a [Sge],
    /// The message itself, copied when posted.
    pub inline: Option<&'a [u8]>,
    /// Where to: 0, or, of an app-managed QP, one of its routes. A request for one that is not
    /// there ends with `LocalQpOperation`, and so does all of a QP of another kind.
    pub route: u32,
}

impl<'a> SendWr<'a> {
    /// Returns a request for `op`, for programs that choose the operation as they run.
    pub const fn new(op: SendOp) -> Self {
        Self {
            wr_id: 0,
            op,
            flags: SendFlags(0),
            sges: &[],
            inline: None,
            route: OWN_BINDING,
        }
    }

    /// Returns a SEND.
    pub const fn send() -> Self {
        Self::new(SendOp::Send)
    }

    /// Returns a SEND with immediate data (32 bits as on the wire, big-endian, read as a number).
    pub const fn send_imm(immediate: u32) -> Self {
        Self::new(SendOp::SendImm(immediate))
    }

    /// Returns a SEND that takes a key of the peer away from it.
    pub const fn send_invalidate(key: Rkey) -> Self {
        Self::new(SendOp::SendInvalidate(key))
    }

    /// Returns a local invalidation (`IBV_WR_LOCAL_INV`): a key of the QP's protection domain is
    /// taken away, once all that was posted to the QP before has completed. RC and UC QPs have it;
    /// one that is app-managed, or UD, fails the request.
    ///
    /// The request has neither elements nor inline bytes. It ends with
    /// [`MemoryManagement`](trunkline_conn::work::Status::MemoryManagement) where the domain has no
    /// such key (any more).
    pub const fn local_invalidate(key: Rkey) -> Self {
        Self::new(SendOp::Own(OwnOp::Invalidate(key)))
    }

    /// Returns a bind of a memory window (`IBV_WR_BIND_MW`): peers may use a part of a region by
    /// its new key, once all that was posted to the QP before has completed. RC and UC QPs have it.
    ///
    /// The request has neither elements nor inline bytes. It ends with
    /// [`MemoryManagement`](trunkline_conn::work::Status::MemoryManagement) where the window cannot
    /// be bound: of type 2, where it is bound already, or to no bytes; where window, region and QP
    /// are not of one protection domain; where the region does not allow binds, or, to a window for
    /// WRITEs or atomics, local writes; where the range is not inside the region.
    pub const fn bind_mw(bind: BindMw) -> Self {
        Self::new(SendOp::Own(OwnOp::BindMw(bind)))
    }

    /// Returns a datagram of a UD QP.
    pub const fn send_to(to: Datagram) -> Self {
        Self::new(SendOp::SendTo(to))
    }

    /// Returns an RDMA WRITE to `remote`.
    pub const fn write(remote: Remote) -> Self {
        Self::new(SendOp::Write(remote))
    }

    /// Returns an RDMA WRITE to `remote` that takes a receive of the peer and tells it
    /// `immediate`, as [`send_imm`](Self::send_imm) does.
    pub const fn write_imm(remote: Remote, immediate: u32) -> Self {
        Self::new(SendOp::WriteImm(remote, immediate))
    }

    /// Returns an RDMA READ of `remote`.
    pub const fn read(remote: Remote) -> Self {
        Self::new(SendOp::Read(remote))
    }

    /// Returns an atomic: stores `swap` in the 8 bytes at `remote` if they equal `compare`. What
    /// they were comes to the request's element.
    pub const fn compare_swap(remote: Remote, compare: u64, swap: u64) -> Self {
        Self::new(SendOp::Atomic(
            remote,
            AtomicOp::CompareSwap { compare, swap },
        ))
    }

    /// Returns an atomic: adds `add`, wrapping, to the 8 bytes at `remote`. What they were comes to
    /// the request's element.
    pub const fn fetch_add(remote: Remote, add: u64) -> Self {
        Self::new(SendOp::Atomic(remote, AtomicOp::FetchAdd { add }))
    }

    /// Sets the cookie that its completion carries.
    #[must_use]
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Sets where its bytes lie; for READ and atomics, where they go.
    #[must_use]
    pub const fn sges(mut self, sges: &'a [Sge]) -> Self {
        self.sges = sges;
        self
    }

    /// Sets the bytes themselves, which are copied when the request is posted.
    #[must_use]
    pub const fn inline(mut self, bytes: &'a [u8]) -> Self {
        self.inline = Some(bytes);
        self
    }

    /// Sets the route of an app-managed QP that it takes.
    #[must_use]
    pub const fn route(mut self, route: u32) -> Self {
        self.route = route;
        self
    }

    /// Adds flags, for programs that choose them as they run.
    #[must_use]
    pub const fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }

    /// Asks for a completion even when all is well.
    #[must_use]
    pub const fn signaled(self) -> Self {
        self.flags(SendFlags::SIGNALED)
    }

    /// Lets earlier READs and atomics of its QP end first.
    #[must_use]
    pub const fn fence(self) -> Self {
        self.flags(SendFlags::FENCE)
    }

    /// Raises an event for the peer's solicited-only notification.
    #[must_use]
    pub const fn solicited(self) -> Self {
        self.flags(SendFlags::SOLICITED)
    }
}

/// A receive work request, as a program posts it (`struct ibv_recv_wr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct RecvWr<'a> {
    /// Cookie for its completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// Returns a receive of messages of no bytes: of WRITEs with immediate, say.
    pub const fn new() -> Self {
        Self {
            wr_id: 0,
            sges: &[],
        }
    }

    /// Sets the cookie that its completion carries.
    #[must_use]
    pub const fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Sets where the message goes.
    #[must_use]
    pub const fn sges(mut self, sges: &'a [Sge]) -> Self {
        self.sges = sges;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setter_sets_what_it_names_and_nothing_else() {
        let (sges, remote) = (
            [Sge::default()],
            Remote {
                addr: 4096,
                rkey: Rkey(9),
            },
        );
        let plain = SendWr::write(remote);
        assert_eq!((plain.wr_id, plain.op), (0, SendOp::Write(remote)));
        assert_eq!(
            (plain.flags, plain.route),
            (SendFlags::default(), OWN_BINDING)
        );
        assert!(plain.sges.is_empty() && plain.inline.is_none());
        let full = plain
            .wr_id(1)
            .sges(&sges)
            .route(7)
            .signaled()
            .fence()
            .solicited();
        let mut flags = SendFlags::SIGNALED | SendFlags::FENCE;
        flags |= SendFlags::SOLICITED;
        assert_eq!((full.wr_id, full.op), (1, SendOp::Write(remote)));
        assert_eq!((full.flags, full.route, full.sges), (flags, 7, &sges[..]));
        assert_eq!(SendWr::send().inline(b"in").inline, Some(&b"in"[..]));
        let receive = RecvWr::new().wr_id(2).sges(&sges);
        assert_eq!((receive.wr_id, receive.sges), (2, &sges[..]));
    }
}
