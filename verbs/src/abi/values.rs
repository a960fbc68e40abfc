//! Values of the header's enumerations, as far as this library compares or says them.

/// `IBV_NODE_CA`: what soft-RoCE calls itself, too.
pub(crate) const NODE_CA: i32 = 1;
/// `IBV_TRANSPORT_IB`
pub(crate) const TRANSPORT_IB: i32 = 0;

/// Bits of `enum ibv_device_cap_flags`.
pub(crate) mod device_cap {
    pub(crate) const CURR_QP_STATE_MOD: u32 = 1 << 7;
    pub(crate) const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub(crate) const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub(crate) const RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub(crate) const SRQ_RESIZE: u32 = 1 << 13;
    pub(crate) const MEM_WINDOW: u32 = 1 << 17;
    pub(crate) const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
    pub(crate) const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
}

/// Bits of `enum ibv_port_cap_flags`.
pub(crate) mod port_cap {
    pub(crate) const CM_SUP: u32 = 1 << 16;
    pub(crate) const IP_BASED_GIDS: u32 = 1 << 26;
}

/// `IBV_QPF_GRH_REQUIRED`, in `flags` of a port.
pub(crate) const QPF_GRH_REQUIRED: u8 = 1;
/// `phys_state` of a port whose link is up.
pub(crate) const PHYS_LINK_UP: u8 = 5;
/// `phys_state` of a port whose link is down.
pub(crate) const PHYS_DISABLED: u8 = 3;

/// `IBV_GID_TYPE_ROCE_V2`
pub(crate) const GID_TYPE_ROCE_V2: u32 = 2;
/// The same as `ibv_query_gid_type` says it.
pub(crate) const GID_TYPE_SYSFS_ROCE_V2: u32 = 1;

/// Values of `enum ibv_event_type`.
pub(crate) mod event {
    pub(crate) const CQ_ERR: u32 = 0;
    pub(crate) const QP_FATAL: u32 = 1;
    pub(crate) const QP_REQ_ERR: u32 = 2;
    pub(crate) const QP_ACCESS_ERR: u32 = 3;
    pub(crate) const COMM_EST: u32 = 4;
    pub(crate) const SQ_DRAINED: u32 = 5;
    pub(crate) const DEVICE_FATAL: u32 = 8;
    pub(crate) const PORT_ACTIVE: u32 = 9;
    pub(crate) const PORT_ERR: u32 = 10;
    pub(crate) const SRQ_ERR: u32 = 14;
    pub(crate) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(crate) const QP_LAST_WQE_REACHED: u32 = 16;
}

/// Values of `enum ibv_wr_opcode`.
pub(crate) mod wr {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const BIND_MW: u32 = 8;
    pub(crate) const SEND_WITH_INV: u32 = 9;
}

/// `IBV_SEND_INLINE`
pub(crate) const SEND_INLINE: u32 = 1 << 3;

/// Bits of `enum ibv_wc_flags`.
pub(crate) mod wc_flags {
    pub(crate) const GRH: u32 = 1;
    pub(crate) const WITH_IMM: u32 = 1 << 1;
    pub(crate) const WITH_INV: u32 = 1 << 3;
}

/// What a completion of an extended CQ may be asked for here: `IBV_WC_STANDARD_FLAGS` and
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`.
pub(crate) const WC_EX_FLAGS: u64 = (1 << 8) - 1;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`
pub(crate) const CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`
pub(crate) const CREATE_CQ_SINGLE_THREADED: u32 = 1;

/// Bits of `enum ibv_access_flags`.
pub(crate) mod access {
    pub(crate) const ON_DEMAND: u32 = 1 << 6;
    /// What a memory region may be asked for: all flags of the header.
    pub(crate) const KNOWN: u32 = (1 << 8) - 1;
    /// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a provider which does not know them passes over.
    pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;
}

/// Bits of `enum ibv_rereg_mr_flags`.
pub(crate) mod rereg {
    pub(crate) const TRANSLATION: i32 = 1;
    pub(crate) const PD: i32 = 1 << 1;
    pub(crate) const ACCESS: i32 = 1 << 2;
    /// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
    pub(crate) const ERR_INPUT: i32 = -1;
    /// `IBV_REREG_MR_ERR_CMD`: the region is not to be used.
    pub(crate) const ERR_CMD: i32 = -4;
}

/// Bits of `enum ibv_srq_attr_mask`.
pub(crate) mod srq_mask {
    pub(crate) const MAX_WR: i32 = 1;
    pub(crate) const LIMIT: i32 = 1 << 1;
}

/// Bits of `enum ibv_qp_init_attr_mask`.
pub(crate) mod qp_init {
    pub(crate) const PD: u32 = 1;
    pub(crate) const CREATE_FLAGS: u32 = 1 << 2;
    pub(crate) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// Bits of `enum ibv_qp_create_send_ops_flags` that there are operations for here.
pub(crate) const SEND_OPS: u64 = (1 << 10) - 1;

/// Values of `enum ibv_qp_type` that there are QPs of here.
pub(crate) mod qp_type {
    pub(crate) const RC: u32 = 2;
    pub(crate) const UC: u32 = 3;
    pub(crate) const UD: u32 = 4;
}

/// Bits of `enum ibv_qp_attr_mask`.
pub(crate) mod qp_mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CUR_STATE: u32 = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const ALT_PATH: u32 = 1 << 14;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
}
