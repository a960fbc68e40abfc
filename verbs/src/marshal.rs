//! Structures of the kernel's interface in those of programs and back. The distribution's librdmacm
//! imports these; what the kernel would give it comes from nowhere here, so they only copy.

use crate::abi;
use crate::abi::{AlignedGid, mirror};

mirror! {
    /// `struct ib_uverbs_global_route`
    KernGlobalRoute = "ib_uverbs_global_route" [24] {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
    }

    /// `struct ib_uverbs_ah_attr`
    KernAhAttr = "ib_uverbs_ah_attr" [32] {
        grh: KernGlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved: u8,
    }

    /// `struct ib_uverbs_qp_attr`
    KernQpAttr = "ib_uverbs_qp_attr" [144] {
        qp_attr_mask: u32,
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        ah_attr: KernAhAttr,
        alt_ah_attr: KernAhAttr,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
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
        reserved: [u8; 5],
    }

    /// `struct ib_user_path_rec`
    KernPathRec = "ib_user_path_rec" [64] {
        dgid: [u8; 16],
        sgid: [u8; 16],
        dlid: u16,
        slid: u16,
        raw_traffic: u32,
        flow_label: u32,
        reversible: u32,
        mtu: u32,
        pkey: u16,
        hop_limit: u8,
        traffic_class: u8,
        numb_path: u8,
        sl: u8,
        mtu_selector: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    /// `struct ibv_sa_path_rec`
    PathRec = "ibv_sa_path_rec" [64] {
        dgid: AlignedGid,
        sgid: AlignedGid,
        dlid: u16,
        slid: u16,
        raw_traffic: u32,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: u32,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
}

fn ah_attr(from: &KernAhAttr) -> abi::AhAttr {
    abi::AhAttr {
        grh: abi::GlobalRoute {
            dgid: AlignedGid(from.grh.dgid),
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// Takes attributes of an address handle from the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut abi::AhAttr, from: *mut KernAhAttr) {
    // SAFETY: the program gives a structure of the kernel.
    let copied = ah_attr(unsafe { &*from });
    // SAFETY: and room for one of its own.
    unsafe { to.write(copied) };
}

/// Takes attributes of a QP from the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut abi::QpAttr, from: *mut KernQpAttr) {
    // SAFETY: the program gives a structure of the kernel.
    let from = unsafe { &*from };
    let copied = abi::QpAttr {
        qp_state: from.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: abi::QpCap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        },
        ah_attr: ah_attr(&from.ah_attr),
        alt_ah_attr: ah_attr(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: 0,
    };
    // SAFETY: the program gives room for a structure of its own.
    unsafe { to.write(copied) };
}

/// Takes a path from the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut PathRec, from: *mut KernPathRec) {
    // SAFETY: the program gives a structure of the kernel.
    let from = unsafe { &*from };
    let copied = PathRec {
        dgid: AlignedGid(from.dgid),
        sgid: AlignedGid(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the program gives room for a structure of its own.
    unsafe { to.write(copied) };
}

/// Gives a path to the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernPathRec, from: *mut PathRec) {
    // SAFETY: the program gives a structure of its own.
    let from = unsafe { &*from };
    let copied = KernPathRec {
        dgid: from.dgid.0,
        sgid: from.sgid.0,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic,
        flow_label: from.flow_label,
        reversible: from.reversible,
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the program gives room for a structure of the kernel.
    unsafe { to.write(copied) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    #[test]
    fn a_path_comes_back_as_it_was() {
        let bytes: [u8; 64] =
            std::array::from_fn(|n| if (44..48).contains(&n) { 0 } else { n as u8 });
        // SAFETY: its fields are integers, for which any bits will do.
        let mut kern: KernPathRec = unsafe { std::mem::transmute(bytes) };
        kern.mtu = 3;
        let mut path = MaybeUninit::uninit();
        // SAFETY: both are there.
        unsafe { ibv_copy_path_rec_from_kern(path.as_mut_ptr(), &raw mut kern) };
        let mut back = MaybeUninit::<KernPathRec>::uninit();
        // SAFETY: the path was written just now.
        unsafe { ibv_copy_path_rec_to_kern(back.as_mut_ptr(), path.as_mut_ptr()) };
        // SAFETY: it was written just now.
        let back = unsafe { back.assume_init() };
        // SAFETY: it has no padding.
        let back: [u8; 64] = unsafe { std::mem::transmute(back) };
        // SAFETY: it has no padding.
        let kern: [u8; 64] = unsafe { std::mem::transmute(kern) };
        assert_eq!(back, kern);
    }
}
