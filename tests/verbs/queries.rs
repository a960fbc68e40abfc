//! What programs ask for, and whether it is true.

use super::common::{End, Pair, address, inline};
use super::verbs_error;
use std::time::Duration;
use trunkline::{
    Allowed, AtomicCap, Attributes, Error, LinkLayer, Node, PortState, Qp, QpModify, QpOptions,
    QpType, SendWr, Srq, VerbsError,
};

fn create(end: &End, options: &QpOptions) -> Result<Qp, Error> {
    end.pd.create_qp(&end.send_cq, &end.recv_cq, options)
}

/// What is refused of a call, by the name that the man page has for it.
fn refused<T: std::fmt::Debug>(made: Result<T, Error>) -> (&'static str, u64, Allowed) {
    match verbs_error(made.unwrap_err()) {
        VerbsError::BadAttribute {
            what,
            value,
            allowed,
        } => (what, value, allowed),
        other => panic!("{other}"),
    }
}

#[test]
fn every_size_that_a_node_tells_is_granted_and_one_more_is_refused_by_its_name() {
    let end = End::new(inline());
    let device = end.node.device_attributes().unwrap();
    type Set = fn(&mut QpOptions, u32);
    let sizes: [(&str, u32, Set); 5] = [
        ("max_send_wr", device.max_qp_wr, |o, n| o.max_send_wr = n),
        ("max_recv_wr", device.max_qp_wr, |o, n| o.max_recv_wr = n),
        ("max_send_sge", device.max_sge, |o, n| o.max_send_sge = n),
        ("max_recv_sge", device.max_sge, |o, n| o.max_recv_sge = n),
        ("max_inline_data", device.max_inline, |o, n| {
            o.max_inline = n
        }),
    ];
    for (what, most, set) in sizes {
        let mut options = QpOptions::default();
        set(&mut options, most);
        create(&end, &options).unwrap();
        set(&mut options, most + 1);
        let error = refused(create(&end, &options));
        let allowed = Allowed::Range(0, most);
        assert_eq!(error, (what, u64::from(most) + 1, allowed));
    }
    let cq = end.node.create_cq(device.max_cqe).unwrap();
    assert_eq!(cq.depth(), device.max_cqe);
    let one_more = device.max_cqe + 1;
    let allowed = Allowed::Range(1, device.max_cqe);
    for error in [
        refused(end.node.create_cq(one_more)),
        refused(cq.resize(one_more)),
    ] {
        assert_eq!(error, ("cqe", one_more.into(), allowed));
    }
    let srq = |wr, sge| -> Result<Srq, Error> { end.pd.create_srq(wr, sge) };
    srq(device.max_srq_wr, device.max_srq_sge).unwrap();
    srq(device.max_srq_wr + 1, 1).unwrap_err();
    srq(1, device.max_srq_sge + 1).unwrap_err();
}

#[test]
fn a_qp_has_as_many_reads_outstanding_as_the_node_says() {
    let pair = Pair::new();
    let device = pair.a.node.device_attributes().unwrap();
    let attributes = Attributes {
        max_rd_atomic: device.max_qp_init_rd_atom,
        max_dest_rd_atomic: device.max_qp_rd_atom,
        ..Attributes::default()
    };
    let (qa, _qb) = pair.qps_with(&QpOptions::default(), &attributes);
    let now = qa.query().unwrap().1;
    assert_eq!(
        (now.max_rd_atomic, now.max_dest_rd_atomic),
        (device.max_qp_init_rd_atom, device.max_qp_rd_atom)
    );
    let all = u64::from(device.max_qp) * u64::from(device.max_qp_rd_atom);
    assert_eq!(device.max_res_rd_atom, all);
}

#[test]
fn messages_and_path_mtus_end_where_the_port_says() {
    let pair = Pair::new();
    let port = pair.a.node.port_attributes().unwrap();
    let (qa, _qb) = pair.qps();
    let mut sge = pair.a.mr.sge(0, 0);
    sge.length = port.max_msg_sz + 1;
    let sges = [sge];
    let long = SendWr::send().sges(&sges);
    let (length, max) = (u64::from(port.max_msg_sz) + 1, port.max_msg_sz);
    let error = verbs_error(qa.post_send(&[long]).unwrap_err());
    assert_eq!(error, VerbsError::MessageTooLong { length, max });
    sge.length = port.max_msg_sz;
    let sges = [sge];
    qa.post_send(&[SendWr::send().sges(&sges)]).unwrap();

    let qp = pair.a.qp(&QpOptions::default());
    let access = trunkline::Access::ALL;
    qp.modify(&QpModify::Init { access }).unwrap();
    let to_itself = Attributes {
        remote: qp.address().gid,
        dest_qpn: qp.qpn(),
        path_mtu: 2 * port.max_mtu,
        ..Attributes::default()
    };
    let (what, value, _) = refused(qp.modify(&QpModify::Rtr(to_itself)));
    assert_eq!((what, value), ("path_mtu", u64::from(2 * port.max_mtu)));
    let path_mtu = port.max_mtu;
    let to_itself = Attributes {
        path_mtu,
        ..to_itself
    };
    qp.modify(&QpModify::Rtr(to_itself)).unwrap();
}

#[test]
fn the_active_mtu_is_the_largest_whose_packets_the_port_carries() {
    // RETH, immediate data and ICRC beside the BTH: the longest headers of RC.
    let headers = 12 + 28 + 4 + 4;
    for (datagram, expected) in [
        (4096 + headers, 4096),
        (4095 + headers, 2048),
        (1024 + headers, 1024),
        (256, 256),
    ] {
        let node = inline().max_datagram(datagram).build().unwrap();
        let port = node.port_attributes().unwrap();
        assert_eq!(port.active_mtu, expected, "{datagram} bytes");
        assert!(port.active_mtu <= port.max_mtu);
        assert!(Attributes::PATH_MTUS.contains(&port.active_mtu));
    }
}

#[test]
fn a_node_says_who_it_is_and_what_its_port_is() {
    let node = Node::builder()
        .address(address())
        .guid(0x0123_4567_89ab_cdef);
    let node = node.workers(2).build().unwrap();
    let device = node.device_attributes().unwrap();
    assert_eq!(device.node_guid, 0x0123_4567_89ab_cdef);
    assert_eq!(device.fw_ver, env!("CARGO_PKG_VERSION"));
    assert_eq!(device.atomic_cap, AtomicCap::Glob);
    assert_eq!(device.atomic_cap as u8, 2, "IBV_ATOMIC_GLOB");
    assert!(device.page_size_cap & 1 << 12 != 0 || device.page_size_cap & 1 << 16 != 0);
    let port = node.port_attributes().unwrap();
    assert_eq!((port.state, port.state as u8), (PortState::Active, 4));
    assert_eq!(port.link_layer, LinkLayer::Ethernet);
    assert_eq!((port.gid_tbl_len, port.pkey_tbl_len), (1, 1));
    // A loop has no rate: verbs want one all the same.
    assert_eq!(port.rate_mbps, None);
    assert_eq!((port.active_speed, port.active_width), (1, 1));
    node.shutdown(Duration::from_secs(10)).unwrap();
    assert_eq!(node.port_attributes().unwrap().state, PortState::Down);
    assert_eq!(node.device_attributes().unwrap(), device);
}

#[test]
fn a_qp_gives_back_what_it_was_made_with() {
    crate::not_served!("it has app-managed QPs");
    let end = End::new(inline().workers(2));
    let srq = end.pd.create_srq(8, 2).unwrap();
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Src] {
        for flag in [false, true] {
            let options = QpOptions {
                kind,
                max_send_wr: 3,
                max_recv_wr: 5,
                max_send_sge: 7,
                max_recv_sge: 0,
                max_inline: 33,
                signal_all: flag,
                worker: Some(u8::from(flag)),
                ..QpOptions::default()
            };
            let (_, _, found) = create(&end, &options).unwrap().query().unwrap();
            assert_eq!(format!("{found:?}"), format!("{options:?}"));
        }
    }
    let of_srq = QpOptions {
        srq: Some(srq),
        complete_last_wqe: true,
        worker: Some(1),
        ..QpOptions::default()
    };
    let (_, _, found) = create(&end, &of_srq).unwrap().query().unwrap();
    // It has no queue for receives.
    let expected = QpOptions {
        max_recv_wr: 0,
        max_recv_sge: 0,
        ..of_srq
    };
    assert_eq!(format!("{found:?}"), format!("{expected:?}"));
}
