#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::{Access, QpOptions, SendWr};
use std::time::Duration;

/// The samples of a text: name and labels, and value.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name, value.parse().unwrap())
    });
    samples.collect()
}

#[test]
fn all_that_a_node_counts_is_in_its_metrics() {
    let node = Node::builder()
        .address([127, 9, std::process::id() as u8, 1].into())
        .drive(crate::Drive::Inline)
        .build()
        .unwrap();
    let (pd, cq) = (node.alloc_pd(), node.create_cq(16).unwrap());
    let mr = pd.register(4096, Access::ALL).unwrap();
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.connect(qp.address()).unwrap();
    let sges = [mr.sge(0, 64)];
    qp.post_send(&[SendWr::write(mr.remote(64)).sges(&sges).signaled()])
        .unwrap();
    assert!(cq.wait(Duration::from_secs(30)).unwrap().is_some());

    let text = node.metrics();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let found = samples(&text);
    for (name, count) in node.counters().named() {
        let name = format!("trunkline_engine_{name}_total");
        assert_eq!(found[&*name], count as f64, "{name}");
    }
    assert_eq!(found["trunkline_engine_completed_total"], 1.0);
    let (port, delivery) = (node.port_counters(), node.delivery_counters());
    assert!(port.sent_bytes > 0 && delivery.sent > 0);
    for (name, count) in [
        ("trunkline_port_sent_bytes_total", port.sent_bytes),
        ("trunkline_delivery_sent_total", delivery.sent),
        ("trunkline_cm_qps_total", node.cm_stats().qps),
        ("trunkline_hand_overs_lost_total", 0),
        ("trunkline_cm_nodes_received_total", 0),
    ] {
        assert_eq!(found[name], count as f64, "{name}");
    }
    // Each family says what it is.
    let help = text.lines().filter(|line| line.starts_with("# HELP"));
    let types = text.lines().filter(|line| line.starts_with("# TYPE"));
    assert_eq!(help.clone().count(), types.count());
    help.for_each(|line| assert!(line.ends_with('.') && line.split(' ').count() > 3, "{line}"));
}
