#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use trunkline_dataplane::{MemoryConfig, MemoryPort};

#[test]
fn each_kind_is_found_by_its_name_and_nothing_else_is() {
    for kind in PortKind::BUILT_IN {
        assert_eq!(kind.to_string().parse::<PortKind>().unwrap(), kind);
    }
    for text in ["", "UDP", "udp ", "udp:", "none:such", "dpdk:ring", "dpdk"] {
        let refused = text.parse::<PortKind>().expect_err("no such port");
        let said = refused.to_string();
        let names = PortKind::BUILT_IN.map(|kind| kind.name().to_owned());
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
        // Who asks for what another build has hears which.
        let is_elsewhere = text.starts_with("dpdk");
        assert_eq!(said.contains("dpdk/Cargo.toml"), is_elsewhere, "{said}");
    }
}

/// Ports of memory.
#[derive(Debug)]
struct Memory;

#[derive(Debug)]
struct Pair(String);

impl PortFamily for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn about(&self) -> &'static str {
        "ports of memory"
    }

    fn look(&self, _: IpAddr) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        Ok("there is memory".to_owned())
    }

    fn source(
        &self,
        text: &str,
    ) -> Result<Arc<dyn PortSource>, Box<dyn std::error::Error + Send + Sync>> {
        match text {
            "" => Err("which one?".into()),
            text => Ok(Arc::new(Pair(text.to_owned()))),
        }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PortSource for Pair {
    fn family(&self) -> &'static str {
        Memory.name()
    }

    fn about(&self) -> &'static str {
        Memory.about()
    }

    fn excludes_others(&self) -> Option<&'static str> {
        (self.0 == "alone").then_some("there is one")
    }

    fn stays_in_process(&self) -> Option<&'static str> {
        (self.0 == "inside").then_some("take another")
    }

    fn open(
        &self,
        request: &PortRequest,
    ) -> Result<Vec<PortBox>, Box<dyn std::error::Error + Send + Sync>> {
        if self.0 == "broken" {
            return Err("it is broken".into());
        }
        let count = request.workers.count();
        let config = match self.0.as_str() {
            "none" => return Ok(Vec::new()),
            "narrow" => MemoryConfig {
                slot_bytes: 256,
                ..MemoryConfig::default()
            },
            _ => MemoryConfig::default(),
        };
        let port = |_| boxed(MemoryPort::pair(config).0);
        Ok((0..count).map(port).collect())
    }
}

#[test]
fn ports_of_a_family_that_was_added_are_named_opened_and_refused_by_what_it_says() {
    PortKind::add_family(&Memory);
    PortKind::add_family(&Memory);
    assert_eq!(PortKind::families().len(), 1);
    let kind: PortKind = "memory:one two".parse().unwrap();
    assert_eq!(
        (kind.name(), kind.to_string()),
        ("memory", "memory:one two".to_owned())
    );
    assert_ne!(kind, "memory:other".parse().unwrap());
    let workers = Workers::new(3).unwrap();
    let address = IpAddr::from([127, 0, 0, 9]);
    let opened = kind.open(&UdpConfig::new(address), workers).unwrap();
    assert_eq!(opened.ports.len(), 3);
    assert_eq!(kind.try_on(address).unwrap(), PortTrial::default());
    assert_eq!(kind.open_alone(address).unwrap().counters().sent, 0);

    let refused = "memory".parse::<PortKind>().expect_err("which one?");
    assert_eq!(refused.to_string(), "port \"memory\": which one?");
    let broken: PortKind = "memory:broken".parse().unwrap();
    let refused = broken.try_on(address).expect_err("it is broken");
    assert_eq!(refused.to_string(), "port memory:broken: it is broken");
    let narrow: PortKind = "memory:narrow".parse().unwrap();
    let refused = narrow
        .try_on(address)
        .expect_err("it is narrow")
        .to_string();
    assert!(
        refused.starts_with("port memory:narrow carries 256 bytes"),
        "{refused}"
    );
    let none: PortKind = "memory:none".parse().unwrap();
    let builder = crate::Node::builder().address(address).port(none);
    let refused = builder.build().expect_err("it has no port").to_string();
    assert!(refused.contains("ports"), "{refused}");
    let unknown = "dpkd:x".parse::<PortKind>().expect_err("no such port");
    assert!(unknown.to_string().contains("memory:..."), "{unknown}");
}

#[test]
fn nodes_that_exclude_each_other_are_told_before_a_port_is_opened() {
    PortKind::add_family(&Memory);
    let [first, second] = [77, 78].map(|last| IpAddr::from([127, 0, 77, last]));
    let both = [first, second];
    let xdp = PortKind::Xdp;
    let conflict = xdp.check_together(&both).unwrap_err().to_string();
    let said = "xdp takes an interface for one node, and lo has both 127.0.77.77 and 127.0.77.78: \
        give addresses of two interfaces, or another kind of port";
    assert_eq!(conflict, said);
    let foreign = IpAddr::from([192, 0, 2, 1]);
    for addresses in [&[][..], &[first], &[first, foreign], &[foreign, foreign]] {
        xdp.check_together(addresses).unwrap();
    }
    for text in ["udp", "packet", "auto", "memory:pair"] {
        let kind: PortKind = text.parse().unwrap();
        kind.check_together(&both).unwrap();
    }
    let alone: PortKind = "memory:alone".parse().unwrap();
    alone.check_together(&[first]).unwrap();
    let conflict = alone.check_together(&both).unwrap_err().to_string();
    assert_eq!(conflict, "memory:alone is a port of one node: there is one");
}

#[test]
fn nodes_of_one_host_that_frames_do_not_join_are_told_before_a_port_is_opened() {
    let loopback = [77, 78].map(|last| IpAddr::from([127, 0, 77, last]));
    let foreign = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
    assert_eq!(PortKind::Auto.within_host(), PortKind::Udp);
    for kind in PortKind::BUILT_IN {
        let auto = kind == PortKind::Auto;
        assert_eq!(kind.clone().within_host() == kind, !auto, "{kind}");
        let within = kind.check_within_host(loopback);
        assert_eq!(within.is_err(), kind == PortKind::Xdp, "{within:?}");
        kind.check_within_host(foreign).unwrap();
        kind.check_within_host([loopback[0], foreign[0]]).unwrap();
    }
}

#[test]
fn ports_that_stay_in_a_process_say_so() {
    PortKind::add_family(&Memory);
    for kind in PortKind::BUILT_IN {
        kind.check_between_processes().unwrap();
    }
    let pair: PortKind = "memory:pair".parse().unwrap();
    pair.check_between_processes().unwrap();
    let inside: PortKind = "memory:inside".parse().unwrap();
    let conflict = inside.check_between_processes().unwrap_err().to_string();
    let said = "memory:inside joins two nodes of one process: take another";
    assert_eq!(conflict, said);
}

#[test]
fn what_auto_has_taken_is_what_a_port_is_called() {
    let config = UdpConfig::new(IpAddr::from([127, 0, 77, 10]));
    let opened = PortKind::Auto.open(&config, Workers::ONE).unwrap();
    assert_eq!(opened.name, "udp");
}

#[test]
fn auto_takes_a_socket_where_the_driver_would_copy() {
    let address = IpAddr::from([127, 0, 77, 9]);
    let found = PortKind::Auto.try_on(address).unwrap();
    let how = Some("takes udp".to_owned());
    assert_eq!(found, PortTrial { workers: None, how });
}
