//! What programs ask for and are told.

use super::mirror;
use super::objects::{CompChannel, Cq, Pd, Srq};
use std::ffi::{c_char, c_int, c_uint, c_void};

mirror! {
    /// `struct ibv_device_attr`
    DeviceAttr = "ibv_device_attr" [232] {
        fw_ver: [c_char; 64],
        node_guid: [u8; 8],
        sys_image_guid: [u8; 8],
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: u32,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// `struct ibv_query_device_ex_input`
    QueryDeviceExInput = "ibv_query_device_ex_input" [4] {
        comp_mask: u32,
    }

    /// `struct ibv_device_attr_ex`. What is opaque here is of offloads that there are none of.
    DeviceAttrEx = "ibv_device_attr_ex" [400] {
        orig_attr: DeviceAttr,
        comp_mask: u32,
        odp_caps: [u64; 3],
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: [u32; 2],
        rss_caps: [u64; 4],
        max_wq_type_rq: u32,
        packet_pacing_caps: [u32; 3],
        raw_packet_caps: u32,
        tm_caps: [u32; 5],
        cq_mod_caps: [u16; 2],
        max_dm_size: u64,
        pci_atomic_caps: [u16; 3],
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    /// `struct ibv_port_attr`
    PortAttr = "ibv_port_attr" [52] {
        state: u32,
        max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }

    /// `struct ibv_gid_entry`
    GidEntry = "ibv_gid_entry" [32] {
        gid: AlignedGid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// `struct ibv_global_route`
    GlobalRoute = "ibv_global_route" [24] {
        dgid: AlignedGid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// `struct ibv_ah_attr`
    AhAttr = "ibv_ah_attr" [32] {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// `struct ibv_ece`
    Ece = "ibv_ece" [12] {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }

    /// `struct ibv_srq_attr`
    SrqAttr = "ibv_srq_attr" [12] {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// `struct ibv_srq_init_attr`
    SrqInitAttr = "ibv_srq_init_attr" [24] {
        srq_context: *mut c_void,
        attr: SrqAttr,
    }

    /// `struct ibv_cq_init_attr_ex`
    CqInitAttrEx = "ibv_cq_init_attr_ex" [56] {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut Pd,
    }

    /// `struct ibv_qp_cap`
    QpCap = "ibv_qp_cap" [20] {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// `struct ibv_qp_init_attr`
    QpInitAttr = "ibv_qp_init_attr" [64] {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: u32,
        sq_sig_all: c_int,
    }

    /// `struct ibv_qp_init_attr_ex`: the one without `_ex` at its front, but for the padding there.
    QpInitAttrEx = "ibv_qp_init_attr_ex" [136] {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: u32,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut Pd,
        xrcd: *mut c_void,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: [u64; 3],
        source_qpn: u32,
        send_ops_flags: u64,
    }

    /// `struct ibv_qp_attr`
    QpAttr = "ibv_qp_attr" [144] {
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: QpCap,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
}

/// `union ibv_gid`, which is aligned as the two words that it also is.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(crate) struct AlignedGid(pub(crate) [u8; 16]);
