//! Requests and completions.

use super::mirror;
use super::objects::{Ah, Cq, Mr, Mw, Qp, Srq};
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    /// `struct ibv_sge`
    Sge = "ibv_sge" [16] {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// `struct ibv_send_wr`
    SendWr = "ibv_send_wr" [128] {
        wr_id: u64,
        next: *mut SendWr,
        sg_list: *mut Sge,
        num_sge: c_int,
        opcode: u32,
        send_flags: c_uint,
        imm_data: u32,
        wr: Target,
        qp_type: u32,
        bind_mw: Bind,
    }

    /// `struct ibv_recv_wr`
    RecvWr = "ibv_recv_wr" [32] {
        wr_id: u64,
        next: *mut RecvWr,
        sg_list: *mut Sge,
        num_sge: c_int,
    }

    /// `struct ibv_mw_bind_info`
    MwBindInfo = "ibv_mw_bind_info" [32] {
        mr: *mut Mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// `struct ibv_mw_bind`
    MwBind = "ibv_mw_bind" [48] {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: MwBindInfo,
    }

    /// `struct ibv_wc`
    Wc = "ibv_wc" [48] {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// `struct ibv_async_event`
    AsyncEvent = "ibv_async_event" [16] {
        element: Element,
        event_type: u32,
    }
}

/// Where a request goes, by its opcode and the type of its QP: `wr` of `struct ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Target {
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Ud,
}

/// `wr.rdma`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// `wr.atomic`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// `wr.ud`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ud {
    pub(crate) ah: *mut Ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// `bind_mw` of `struct ibv_send_wr`
#[repr(C)]
pub(crate) struct Bind {
    pub(crate) mw: *mut Mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: MwBindInfo,
}

/// Whom an event is about: `element` of `struct ibv_async_event`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Element {
    pub(crate) cq: *mut Cq,
    pub(crate) qp: *mut Qp,
    pub(crate) srq: *mut Srq,
    pub(crate) wq: *mut c_void,
    pub(crate) port_num: c_int,
}
