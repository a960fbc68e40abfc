//! Nodes of several workers on a driver whose queues the kernel picks by a hash of its own.

use super::ends::{FAMILIES, PATIENCE};
use crate::DpdkSpec;
use crate::port::unique;
use std::time::Instant;
use trunkline::{
    Access, Completion, Cq, Drive, Mr, Node, Pd, Port, PortRequest, Qp, QpOptions, SendOp, SendWr,
    Status, Workers,
};
use trunkline_testkit::netns::beside_a_neighbour;
use trunkline_wire::ROCE_PORT;

const WORKERS: u8 = 2;
const LENGTH: usize = 1000;

/// A node on an interface, and what QPs need.
struct End {
    node: Node,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl End {
    fn new(interface: &str, address: &str) -> Self {
        let driver = format!(
            "net_af_packet{},iface={interface},qpairs={WORKERS}",
            unique()
        );
        let spec: DpdkSpec = driver.parse().unwrap();
        let request = PortRequest {
            address: address.parse().unwrap(),
            udp_port: ROCE_PORT,
            extra_source_ports: 0,
            workers: Workers::new(WORKERS).unwrap(),
        };
        let ports = spec.open_ports(&request).unwrap().into_iter();
        let ports = ports.map(|port| Box::new(port) as Box<dyn Port + Send>);
        let builder = Node::builder().drive(Drive::Inline).workers(WORKERS);
        let builder = builder.address(request.address);
        let node = builder.build_on_all(ports.collect()).unwrap();
        let pd = node.alloc_pd();
        Self {
            cq: node.create_cq(256).unwrap(),
            mr: pd.register(LENGTH, Access::ALL).unwrap(),
            node,
            pd,
        }
    }

    fn qp(&self, worker: u8) -> Qp {
        let options = QpOptions {
            worker: Some(worker),
            ..QpOptions::default()
        };
        self.pd.create_qp(&self.cq, &self.cq, &options).unwrap()
    }
}

/// Two nodes with a QP at each for each pair of their workers.
struct Pair {
    ends: [End; 2],
    qps: Vec<[Qp; 2]>,
}

impl Pair {
    fn new(ends: [End; 2]) -> Self {
        let workers = (0..WORKERS).flat_map(|i| (0..WORKERS).map(move |j| (i, j)));
        let qps = workers.map(|(i, j)| {
            let qps = [ends[0].qp(i), ends[1].qp(j)];
            qps[0].connect(qps[1].address()).unwrap();
            qps[1].connect(qps[0].address()).unwrap();
            qps
        });
        Self {
            qps: qps.collect(),
            ends,
        }
    }

    /// Each QP of both nodes writes to the other end, so many times. Gives the packets that came,
    /// and those of them that came out at the wrong worker.
    fn write(&self, times: usize) -> (u64, u64) {
        let before = self.came();
        for _ in 0..times {
            for (from, to) in [(0, 1), (1, 0)] {
                let (from_mr, to_mr) = (&self.ends[from].mr, &self.ends[to].mr);
                for qps in &self.qps {
                    let request = SendWr::new(SendOp::Write(to_mr.remote(0)));
                    let sges = [from_mr.sge(0, LENGTH)];
                    qps[from]
                        .post_send(&[request.signaled().sges(&sges)])
                        .unwrap();
                }
                self.complete(from);
            }
        }
        let after = self.came();
        (after.0 - before.0, after.1 - before.1)
    }

    fn complete(&self, from: usize) {
        let (begin, mut done) = (Instant::now(), 0);
        let mut completions = [Completion::BLANK; 16];
        while done < self.qps.len() {
            assert!(begin.elapsed() < PATIENCE, "WRITEs do not end");
            for end in &self.ends {
                end.node.poll().unwrap();
            }
            let count = self.ends[from].cq.poll(&mut completions).unwrap();
            let mut new = completions[..count].iter();
            assert!(new.all(|completion| completion.status == Status::Success));
            done += count;
        }
    }

    fn came(&self) -> (u64, u64) {
        let nodes = self.ends.each_ref().map(|end| &end.node);
        let received = nodes.map(|node| node.counters().received);
        let astray = nodes.map(|node| node.hand_overs().packets);
        (received.iter().sum(), astray.iter().sum())
    }
}

#[test]
#[ignore = "takes CAP_NET_ADMIN and CAP_NET_RAW"]
fn packets_come_out_at_their_workers_after_a_while_whatever_the_kernel_hashes() {
    beside_a_neighbour(|far| {
        for [here, there] in FAMILIES {
            let ends = [
                End::new("near", here),
                far.within(|| End::new("far", there)),
            ];
            let pair = Pair::new(ends);
            pair.write(500);
            let (came, astray) = pair.write(500);
            assert!(came > 1000 && 100 * astray < came, "{astray} of {came}");
        }
    });
}
