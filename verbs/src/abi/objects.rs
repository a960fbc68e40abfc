//! What programs hold: pointers to these.

use super::context::Context;
use super::work::{MwBindInfo, Sge};
use super::{PthreadCond, PthreadMutex, mirror};
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    /// `struct ibv_pd`
    Pd = "ibv_pd" [16] {
        context: *mut Context,
        handle: u32,
    }

    /// `struct ibv_mr`
    Mr = "ibv_mr" [48] {
        context: *mut Context,
        pd: *mut Pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// `struct ibv_mw`
    Mw = "ibv_mw" [32] {
        context: *mut Context,
        pd: *mut Pd,
        rkey: u32,
        handle: u32,
        r#type: u32,
    }

    /// `struct ibv_ah`
    Ah = "ibv_ah" [24] {
        context: *mut Context,
        pd: *mut Pd,
        handle: u32,
    }

    /// `struct ibv_comp_channel`
    CompChannel = "ibv_comp_channel" [16] {
        context: *mut Context,
        fd: c_int,
        refcnt: c_int,
    }

    /// `struct ibv_srq`
    Srq = "ibv_srq" [128] {
        context: *mut Context,
        srq_context: *mut c_void,
        pd: *mut Pd,
        handle: u32,
        mutex: PthreadMutex,
        cond: PthreadCond,
        events_completed: u32,
    }

    /// `struct ibv_cq`
    Cq = "ibv_cq" [128] {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: PthreadMutex,
        cond: PthreadCond,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// `struct ibv_cq_ex`: a CQ at its front, and a completion that is being read.
    CqEx = "ibv_cq_ex" [288] {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: PthreadMutex,
        cond: PthreadCond,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: u32,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
        read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
        read_cvlan: Option<unsafe extern "C" fn(*mut CqEx) -> u16>,
        read_flow_tag: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_tm_info: Option<unsafe extern "C" fn(*mut CqEx, *mut c_void)>,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    }

    /// `struct ibv_poll_cq_attr`
    PollCqAttr = "ibv_poll_cq_attr" [4] {
        comp_mask: u32,
    }

    /// `struct ibv_qp`
    Qp = "ibv_qp" [160] {
        context: *mut Context,
        qp_context: *mut c_void,
        pd: *mut Pd,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        handle: u32,
        qp_num: u32,
        state: u32,
        qp_type: u32,
        mutex: PthreadMutex,
        cond: PthreadCond,
        events_completed: u32,
    }

    /// `struct ibv_qp_ex`
    QpEx = "ibv_qp_ex" [352] {
        qp_base: Qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
        wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
        wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
        wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
    }

    /// `struct ibv_data_buf`
    DataBuf = "ibv_data_buf" [16] {
        addr: *mut c_void,
        length: usize,
    }
}
