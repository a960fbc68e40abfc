//! What drivers of other hardware import. Programs link such drivers' libraries (perftest that of
//! mlx5, for example), which have to load; there is no device for them, so they come no further.
//!
//! Each name is of the version IBVERBS_PRIVATE_34, which rdma-core 36 to 56 have.

use crate::answer::{UNSUPPORTED, code, pointer};
use std::ffi::{c_int, c_uint, c_void};

/// Commands to the kernel's devices. They take whatever arguments: none is read.
macro_rules! refused {
    ($($name:ident)*) => {$(
        /// Answers EOPNOTSUPP.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            code(|| Err(UNSUPPORTED))
        }
    )*};
}

refused! {
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
}

/// Whether objects of a device that was taken away count as destroyed.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: bool = false;

/// Attributes of a command: none.
#[unsafe(no_mangle)]
extern "C" fn __ioctl_final_num_attrs() -> c_uint {
    0
}

/// A line of a driver's log: dropped, as the stock library does unless it is told a file.
#[unsafe(no_mangle)]
extern "C" fn __verbs_log() {}

/// A context of another device: NULL.
#[unsafe(no_mangle)]
extern "C" fn _verbs_init_and_alloc_context() -> *mut c_void {
    pointer(|| Err(UNSUPPORTED))
}

/// Opens another device: NULL.
#[unsafe(no_mangle)]
extern "C" fn verbs_open_device() -> *mut c_void {
    pointer(|| Err(UNSUPPORTED))
}

/// Reads a file of another device: there is none.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file() -> c_int {
    UNSUPPORTED.set();
    -1
}

/// A driver offers itself when it is loaded: its hardware will not be asked for.
#[unsafe(no_mangle)]
extern "C" fn verbs_register_driver_34() {}

/// A CQ of another device: there is none.
#[unsafe(no_mangle)]
extern "C" fn verbs_init_cq() {}

/// The functions of another device's context: there is none.
#[unsafe(no_mangle)]
extern "C" fn verbs_set_ops() {}

/// The end of another device's context: there is none.
#[unsafe(no_mangle)]
extern "C" fn verbs_uninit_context() {}
