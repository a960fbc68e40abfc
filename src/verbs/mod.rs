//! The objects of verbs, as programs hold them: each is a handle of something in the node.

pub(crate) mod ah;
pub(crate) mod connection;
pub(crate) mod cq;
pub(crate) mod event;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod qp;
pub(crate) mod srq;
