//! Memory windows.

use crate::error::Error;
use crate::verbs::mr::{Mr, Pd};
use crate::verbs::qp::Qp;
use std::fmt;
use trunkline_conn::mem::Access;
use trunkline_conn::work::{BindMw, SendFlags, inc_rkey};
use trunkline_host::Handle;
use trunkline_qpmap::VerbsError;
use trunkline_qpmap::regions::MwType;
use trunkline_qpmap::wqe::SendWr;
use trunkline_wire::Rkey;

/// A memory window (`ibv_alloc_mw(3)`): a key that lets peers use a part of a region for some time.
/// Dropping it frees it, bound or not: its key names nothing any more.
///
/// One of [`MwType::Type1`] is bound by [`Qp::bind_mw`]; any peer of the protection domain may use
/// it, and each bind takes the key of the last one away. One of [`MwType::Type2`] is bound by
/// [`SendWr::bind_mw`], and only the peer of the QP that bound it may use it (type 2B). It is bound
/// until a [`SendWr::local_invalidate`] of that QP, or a
/// [`SendWr::send_invalidate`] of its peer; until the QP is reset or destroyed; or until the window
/// is freed.
pub struct Mw {
    pd: Pd,
    kind: MwType,
    rkey: Rkey,
    /// What its service calls it, if one carries the node.
    served: Option<Handle>,
}

/// How [`Qp::bind_mw`] posts a bind (`struct ibv_mw_bind`).
#[derive(Clone, Copy, Debug, Default)]
pub struct BindOptions {
    /// Cookie for its completion.
    pub wr_id: u64,
    /// [`SendFlags::SIGNALED`] and [`SendFlags::FENCE`], or neither.
    pub flags: SendFlags,
}

impl Pd {
    /// Allocates a memory window, which is bound to nothing (`ibv_alloc_mw(3)`).
    ///
    /// # Errors
    /// There are 65,536 windows already; the node is down or belongs to another process.
    ///
    /// ```no_run
    /// use trunkline::{Access, MwType, Pd, Qp, SendWr};
    ///
    /// # fn program(pd: &Pd, qp: &Qp) -> Result<(), trunkline::Error> {
    /// let mr = pd.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// let mw = pd.alloc_mw(MwType::Type2)?;
    /// let bind = mw.bind_to(&mr, 1024, 512, Access::REMOTE_WRITE);
    /// qp.post_send(&[SendWr::bind_mw(bind)])?; // from then on the peer WRITEs by `bind.rkey`
    /// qp.post_send(&[SendWr::local_invalidate(bind.rkey)])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc_mw(&self, kind: MwType) -> Result<Mw, Error> {
        let node = &self.0.node;
        let (rkey, served) = match node.client() {
            None => (node.regions()?.alloc_mw(self.0.id()?, kind)?, None),
            Some(client) => {
                let (mw, rkey) = client.alloc_mw(self.0.served()?, kind)?;
                (rkey, Some(mw))
            }
        };
        Ok(Mw {
            pd: self.clone(),
            kind,
            rkey,
            served,
        })
    }
}

impl Mw {
    /// Its type.
    pub const fn kind(&self) -> MwType {
        self.kind
    }

    /// The key that [`Qp::bind_mw`] gave it last; before that, and of type 2 always, the one that
    /// it was allocated with.
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns a bind to `length` bytes of `mr` from `offset` on. Its key is the next one
    /// (`ibv_inc_rkey(3)`); a program may choose other low 8 bits before it posts it.
    pub fn bind_to(&self, mr: &Mr, offset: usize, length: usize, access: Access) -> BindMw {
        BindMw {
            rkey: inc_rkey(self.rkey),
            lkey: mr.lkey(),
            addr: mr.remote(offset).addr,
            length: length as u64,
            access,
        }
    }
}

impl Qp {
    /// Binds a window of type 1 by a request on this QP (`ibv_bind_mw(3)`), which takes effect in
    /// its turn: see [`SendWr::bind_mw`]. Returns the key that the window has from then on,
    /// whatever key `bind` names. No bytes unbind the window.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`]: a window of type 2 or of another node. As
    /// [`post_send`](Self::post_send): the window has its old key then.
    pub fn bind_mw(&self, mw: &mut Mw, bind: &BindMw, how: BindOptions) -> Result<Rkey, Error> {
        mw.pd.0.node.check_same(self.node(), "memory window")?;
        if mw.kind != MwType::Type1 {
            let what = "type of the memory window";
            return Err(VerbsError::InvalidArgument { what }.into());
        }
        let rkey = inc_rkey(mw.rkey);
        let request = SendWr::bind_mw(BindMw { rkey, ..*bind });
        self.post_send(&[request.wr_id(how.wr_id).flags(how.flags)])?;
        mw.rkey = rkey;
        Ok(rkey)
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mw")
            .field("kind", &self.kind)
            .field("rkey", &format_args!("{}", self.rkey))
            .finish_non_exhaustive()
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let node = &self.pd.0.node;
        if let (Some(client), Some(mw)) = (node.client(), self.served) {
            return client.dealloc_mw(mw);
        }
        let freed = node.regions();
        let freed = freed.and_then(|regions| Ok(regions.dealloc_mw(self.rkey)?));
        node.gave_up(freed, "an Mw is there as long as it lives");
    }
}
