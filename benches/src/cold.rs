//! The first byte to a node that was never met, in one-way trips of virtual time.

use crate::Measurement;
use anyhow::{Result, ensure};
use std::net::IpAddr;
use trunkline::{
    Access, Clock, Cq, Drive, Instant, Mr, Node, Pd, Qp, QpAddress, QpOptions, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Status,
};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_sim::net::{Link, Network, PortShape};
use trunkline_sim::trace::Trace;

/// One way, in virtual ns: long against the time that packets take to be sent.
const TRIP: u64 = 10 * MILLISECOND;
const UNIT: &str = "one-way trips of virtual time until the first byte of a SEND is there";
const YARDSTICK: &str = "the same to a node that is known";

/// `cm_cold_trips`
///
/// # Errors
/// A node that refuses, or a SEND that does not arrive.
pub fn trips() -> Result<Measurement> {
    let world = World::new()?;
    let cold = world.first_byte()?;
    let warm = world.first_byte()?;
    let ordinary = World::new()?.both_ask()?;
    Ok(
        Measurement::new("cm_cold_trips", UNIT, YARDSTICK, (cold, warm)).note(format!(
            "where both programs connect at once: {ordinary:.3} trips"
        )),
    )
}

struct End {
    node: Node,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl End {
    fn new(network: &Network, index: usize, clock: &Clock) -> Result<Self> {
        let shape = PortShape {
            max_datagram: 4176,
            ring: 64,
            source_ports: &[4791],
        };
        let node = Node::builder()
            .address(address(index))
            .drive(Drive::Inline)
            .clock(clock.clone())
            .seed(index as u64 + 1)
            .build_on(Box::new(network.plug(index, shape)))?;
        let (pd, cq) = (node.alloc_pd(), node.create_cq(64)?);
        let mr = pd.register(64, Access::ALL)?;
        Ok(Self { node, pd, cq, mr })
    }

    fn qp(&self, kind: QpType) -> Result<Qp> {
        let options = QpOptions {
            kind,
            ..QpOptions::default()
        };
        Ok(self.pd.create_qp(&self.cq, &self.cq, &options)?)
    }

    fn receive(&self, qp: &Qp) -> Result<()> {
        let sges = [self.mr.sge(0, 8)];
        Ok(qp.post_recv(&[RecvWr {
            wr_id: 0,
            sges: &sges,
        }])?)
    }

    fn send(&self, qp: &Qp) -> Result<()> {
        let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
        let request = SendWr {
            wr_id: 0,
            op,
            flags,
            sges: &[self.mr.sge(0, 8)],
            inline: None,
            route: 0,
        };
        Ok(qp.post_send(&[request])?)
    }
}

struct World {
    network: Network,
    clock: Clock,
    ends: [End; 2],
}

fn address(index: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, index as u8 + 1])
}

impl World {
    fn new() -> Result<Self> {
        let link = Link {
            delay_ns: TRIP,
            ..Link::CLEAN
        };
        let network = Network::new(1, &[address(0), address(1)], link, Trace::new(false));
        let clock = Clock::manual();
        clock.set(Instant::from_nanos(SECOND));
        network.net().set_now(SECOND);
        let ends = [
            End::new(&network, 0, &clock)?,
            End::new(&network, 1, &clock)?,
        ];
        Ok(Self {
            network,
            clock,
            ends,
        })
    }

    /// From a QP that connects to a QP of the other node that listens to everybody.
    fn first_byte(&self) -> Result<f64> {
        let [near, far] = &self.ends;
        let listener = far.qp(QpType::Src)?;
        listener.connect(QpAddress {
            gid: near.node.gid(),
            ..listener.address()
        })?;
        far.receive(&listener)?;
        let qp = near.qp(QpType::Rc)?;
        qp.connect(listener.address())?;
        near.send(&qp)?;
        self.until_received()
    }

    /// Both programs connect their QPs at the same time.
    fn both_ask(&self) -> Result<f64> {
        let [near, far] = &self.ends;
        let (qp, other) = (near.qp(QpType::Rc)?, far.qp(QpType::Rc)?);
        qp.connect(other.address())?;
        other.connect(qp.address())?;
        far.receive(&other)?;
        near.send(&qp)?;
        self.until_received()
    }

    /// Trips from now until the second node has received something.
    fn until_received(&self) -> Result<f64> {
        let start = self.clock.now();
        loop {
            for end in &self.ends {
                // What a node sends itself may call for another round.
                for _ in 0..4 {
                    end.node.poll()?;
                }
            }
            if let Some(done) = self.ends[1].cq.poll_one() {
                ensure!(done.status == Status::Success, "{done:?}");
                return Ok(self.clock.now().since(start) as f64 / TRIP as f64);
            }
            let mut net = self.network.net();
            let arrival = net.next_arrival().map(Instant::from_nanos);
            let timers = self.ends.iter().filter_map(|end| end.node.next_timeout());
            let next = timers.chain(arrival).min();
            let next = next.unwrap_or(Instant::FAR).max(self.clock.now() + 1);
            ensure!(next.since(start) < SECOND, "the SEND does not arrive");
            self.clock.set(next);
            net.set_now(next.as_nanos());
            net.deliver(|_| {});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_to_a_new_node_takes_three_trips() {
        let found = trips().expect("it runs anywhere");
        assert!((2.99..3.01).contains(&found.value), "{found:?}");
        assert!(found.yardstick_value > 0.99, "{found:?}");
    }
}
