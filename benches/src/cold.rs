//! The first byte to a node that was never met, in one-way trips of virtual time.

use crate::Measurement;
use crate::end::End;
use anyhow::{Result, ensure};
use std::net::IpAddr;
use trunkline::{Clock, Drive, Instant, Node, Qp, QpAddress, QpOptions, QpType, RecvWr, Status};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_sim::net::{Link, Network, PortShape};
use trunkline_sim::trace::Trace;
use trunkline_wire::Workers;

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

fn end(network: &Network, index: usize, clock: &Clock) -> Result<End> {
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
        .build_on_all(network.plug(index, Workers::ONE, shape))?;
    End::new(node, 64)
}

fn qp(end: &End, kind: QpType) -> Result<Qp> {
    end.qp(&QpOptions {
        kind,
        ..QpOptions::default()
    })
}

fn receive(end: &End, qp: &Qp) -> Result<()> {
    let sges = [end.mr.sge(0, 8)];
    Ok(qp.post_recv(&[RecvWr {
        wr_id: 0,
        sges: &sges,
    }])?)
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
        let ends = [end(&network, 0, &clock)?, end(&network, 1, &clock)?];
        Ok(Self {
            network,
            clock,
            ends,
        })
    }

    /// From a QP that connects to a QP of the other node that listens to everybody.
    fn first_byte(&self) -> Result<f64> {
        let [near, far] = &self.ends;
        let listener = qp(far, QpType::Src)?;
        listener.connect(QpAddress {
            gid: near.node.gid(),
            ..listener.address()
        })?;
        receive(far, &listener)?;
        let sender = qp(near, QpType::Rc)?;
        sender.connect(listener.address())?;
        near.send(&sender, 0)?;
        self.until_received()
    }

    /// Both programs connect their QPs at the same time.
    fn both_ask(&self) -> Result<f64> {
        let [near, far] = &self.ends;
        let (sender, other) = (qp(near, QpType::Rc)?, qp(far, QpType::Rc)?);
        sender.connect(other.address())?;
        other.connect(sender.address())?;
        receive(far, &other)?;
        near.send(&sender, 0)?;
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
            if let Some(done) = self.ends[1].cq.poll_one().expect("room in the CQ") {
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
