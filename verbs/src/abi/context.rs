//! Devices, contexts, and the tables of functions that inline functions of the header call.

use super::attributes::{CqInitAttrEx, DeviceAttrEx, PortAttr, QpInitAttrEx, QueryDeviceExInput};
use super::objects::{Cq, CqEx, Mw, Pd, Qp, Srq};
use super::work::{MwBind, RecvWr, SendWr, Wc};
use super::{PthreadMutex, mirror};
use std::ffi::{c_char, c_int, c_void};

/// A place of a table that nobody calls, or that says by NULL that there is no such function.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

mirror! {
    /// `struct ibv_device`
    Device = "ibv_device" [664] {
        _ops: [Unused; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    /// `struct ibv_context_ops`
    ContextOps = "ibv_context_ops" [256] {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Option<unsafe extern "C" fn(*mut Pd, u32) -> *mut Mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
        _compat_create_cq: Unused,
        poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: Option<
            unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
        >,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }

    /// `struct ibv_context`
    Context = "ibv_context" [328] {
        device: *mut Device,
        ops: ContextOps,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: PthreadMutex,
        abi_compat: *mut c_void,
    }

    #[expect(non_snake_case, reason = "names of the header")]
    /// `struct verbs_context`: it grows at its front, and ends with the context that programs know.
    VerbsContext = "verbs_context" [648] {
        query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
        advise_mr: Unused,
        alloc_null_mr: Unused,
        read_counters: Unused,
        attach_counters_point_flow: Unused,
        create_counters: Unused,
        destroy_counters: Unused,
        reg_dm_mr: Unused,
        alloc_dm: Unused,
        free_dm: Unused,
        modify_flow_action_esp: Unused,
        destroy_flow_action: Unused,
        create_flow_action_esp: Unused,
        modify_qp_rate_limit: Unused,
        alloc_parent_domain: Unused,
        dealloc_td: Unused,
        alloc_td: Unused,
        modify_cq: Unused,
        post_srq_ops: Unused,
        destroy_rwq_ind_table: Unused,
        create_rwq_ind_table: Unused,
        destroy_wq: Unused,
        modify_wq: Unused,
        create_wq: Unused,
        query_rt_values: Unused,
        create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
        r#priv: *mut c_void,
        query_device_ex: Option<
            unsafe extern "C" fn(
                *mut Context,
                *const QueryDeviceExInput,
                *mut DeviceAttrEx,
                usize,
            ) -> c_int,
        >,
        ibv_destroy_flow: Unused,
        ABI_placeholder2: Unused,
        ibv_create_flow: Unused,
        ABI_placeholder1: Unused,
        open_qp: Unused,
        create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
        get_srq_num: Unused,
        create_srq_ex: Unused,
        open_xrcd: Unused,
        close_xrcd: Unused,
        _ABI_placeholder3: u64,
        sz: usize,
        context: Context,
    }
}
