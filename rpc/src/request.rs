//! What is asked.

use crate::calls::Held;
use crate::frame::Extent;
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Mr, Sge};

/// A request: what a client sends, and what a service gets.
#[derive(Clone, Debug)]
pub struct Request {
    body: Bytes,
    deadline: Option<Duration>,
    peer: Option<SocketAddr>,
    from: Option<Part>,
}

/// Most bytes of one message of a QP.
const MAX_MESSAGE: u32 = 1 << 31;

/// A part of a region of the caller.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) mr: Arc<Mr>,
    pub(crate) offset: usize,
    pub(crate) length: u32,
}

impl Part {
    /// `None`: it is not within the region, or empty, or longer than anything may be.
    pub(crate) fn of(mr: &Arc<Mr>, offset: usize, length: usize) -> Option<Self> {
        let end = offset.checked_add(length)?;
        let length = u32::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_MESSAGE)?;
        (length > 0 && end <= mr.len()).then(|| Self {
            mr: Arc::clone(mr),
            offset,
            length,
        })
    }

    pub(crate) fn sge(&self) -> Sge {
        self.mr.sge(self.offset, self.length as usize)
    }

    pub(crate) fn extent(&self) -> Extent {
        Extent {
            remote: self.mr.remote(self.offset),
            length: self.length,
        }
    }
}

impl Request {
    /// Returns one of these bytes. What is longer than a message is copied once, into memory that
    /// the server reads.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            deadline: None,
            peer: None,
            from: None,
        }
    }

    /// Returns one of `length` bytes, at least 1, of a region that is registered with
    /// [`Endpoint::register`](crate::Endpoint::register). The server reads them there; nothing
    /// copies them at this end. They must not be changed before there is a response: where its
    /// caller stops waiting for that, the server may read them still.
    ///
    /// # Panics
    /// The range is empty, outside the region, or longer than 2 GiB.
    pub fn from_region(mr: &Arc<Mr>, offset: usize, length: usize) -> Self {
        let part = Part::of(mr, offset, length);
        Self {
            from: Some(part.expect("bytes of a request lie within their region")),
            ..Self::new(Bytes::new())
        }
    }

    /// Sets how long, from when its call is polled first, its caller waits. The server drops what
    /// it has begun when that time is over. Up to 71 minutes are told to the server.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    pub(crate) const fn received(
        body: Bytes,
        deadline: Option<Duration>,
        peer: SocketAddr,
    ) -> Self {
        Self {
            body,
            deadline,
            peer: Some(peer),
            from: None,
        }
    }

    /// Returns its bytes; none where they lie in a region.
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns its bytes.
    pub fn into_body(self) -> Bytes {
        self.body
    }

    /// Returns how long its caller waits: at a service, what was
    /// left of it when the request was sent.
    pub const fn time_left(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the client's address; `None` where it was not received.
    pub const fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    pub(crate) const fn from(&self) -> Option<&Part> {
        self.from.as_ref()
    }

    /// What is held until there is a response.
    pub(crate) fn held(&self) -> Held {
        Held {
            from: self.from.as_ref().map(|part| Arc::clone(&part.mr)),
            ..Held::default()
        }
    }
}

impl<B: Into<Bytes>> From<B> for Request {
    fn from(body: B) -> Self {
        Self::new(body)
    }
}
