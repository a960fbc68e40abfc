//! Connections under the program's own control: one QP that talks to two peers over connections
//! with attributes of their own, moves from one to another under traffic, and survives a close.

use std::net::{IpAddr, Ipv4Addr};
use trunkline::{
    Access, Attributes, CongestionControl, Connection, ConnectionOptions, Cq, Drive, Error, Event,
    Mr, Node, Qp, QpModify, QpOptions, QpType, SendWr, Status,
};

const SIZE: usize = 64 << 10;

/// A node with one app-managed QP.
struct End {
    node: Node,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(last: u8) -> Result<Self, Error> {
        let address: IpAddr = Ipv4Addr::new(127, 32, std::process::id() as u8, last).into();
        let node = Node::builder()
            .address(address)
            .drive(Drive::Inline)
            .extra_source_ports(3);
        let node = node.build()?;
        let (pd, cq) = (node.alloc_pd(), node.create_cq(256)?);
        let mr = pd.register(SIZE, Access::ALL)?;
        let options = QpOptions {
            kind: QpType::Src,
            ..QpOptions::default()
        };
        let qp = pd.create_qp(&cq, &cq, &options)?;
        // It has no peer of its own: whom it talks to is a matter of routes.
        qp.modify(&QpModify::Init {
            access: Access::ALL,
        })?;
        qp.modify(&QpModify::Rtr(Attributes::default()))?;
        qp.modify(&QpModify::Rts(Attributes::default()))?;
        Ok(Self { node, cq, qp, mr })
    }

    fn address(&self) -> IpAddr {
        self.node.gid().address()
    }

    /// WRITEs the whole region into that of `to`.
    fn write(&self, route: u32, to: &Self, wr_id: u64) -> Result<(), Error> {
        self.qp.post_send(&[SendWr::write(to.mr.remote(0))
            .wr_id(wr_id)
            .sges(&[self.mr.sge(0, SIZE)])
            .signaled()
            .route(route)])
    }
}

struct Cluster([End; 3]);

impl Cluster {
    fn until(&self, mut done: impl FnMut() -> bool) -> Result<(), Error> {
        while !done() {
            for end in &self.0 {
                end.node.poll()?;
            }
        }
        Ok(())
    }

    fn open(&self, to: &End, options: &ConnectionOptions) -> Result<Connection, Error> {
        let connection = self.0[0].node.open_connection(to.address(), options)?;
        self.until(|| connection.is_open())?;
        Ok(connection)
    }
}

fn main() -> Result<(), Error> {
    let cluster = Cluster([End::new(1)?, End::new(2)?, End::new(3)?]);
    let [a, b, c] = &cluster.0;
    let bulk = ConnectionOptions {
        weight: 1,
        source_ports: 4,
        ..ConnectionOptions::default()
    };
    let urgent = ConnectionOptions {
        control: Some(CongestionControl::Dcqcn),
        traffic_class: 46 << 2,
        weight: 8,
        ..ConnectionOptions::default()
    };
    let (to_b, to_c) = (cluster.open(b, &bulk)?, cluster.open(c, &bulk)?);
    let fast_to_b = cluster.open(b, &urgent)?;

    let routes = [
        a.qp.route(&to_b, b.qp.qpn())?,
        a.qp.route(&to_c, c.qp.qpn())?,
    ];
    a.mr.write(0, &vec![0xab; SIZE])?;
    for wr_id in 0..60 {
        let peer = (wr_id % 2) as usize;
        a.write(routes[peer], [b, c][peer], wr_id)?;
        match wr_id {
            // Live: what is begun ends where it is, what follows takes the other connection.
            20 => a.qp.bind_route(routes[0], &fast_to_b)?,
            // By force: flows on a connection that closes move to the node's own pool.
            40 => fast_to_b.close(),
            _ => {}
        }
        cluster.until(|| a.node.counters().completed + 8 > wr_id)?;
    }
    // Completions are in order on each route.
    let mut next = [0, 1];
    for _ in 0..60 {
        let mut polled = a.cq.poll_one();
        cluster.until(|| {
            if polled == Ok(None) {
                polled = a.cq.poll_one();
            }
            polled != Ok(None)
        })?;
        let done = polled?.expect("it was waited for");
        let peer = usize::from(done.route == routes[1]);
        assert_eq!(
            (done.wr_id, done.status),
            (next[peer], Status::Success),
            "in order, none lost, none twice"
        );
        next[peer] += 2;
    }
    for (name, end) in [("b", b), ("c", c)] {
        let mut found = vec![0; SIZE];
        end.mr.read(0, &mut found)?;
        assert!(found.iter().all(|byte| *byte == 0xab));
        println!(
            "node {name}: {} messages executed",
            end.node.counters().executed
        );
    }
    let moves = std::iter::from_fn(|| a.node.poll_event())
        .filter(|event| matches!(event, Event::Moved { .. }))
        .count();
    println!(
        "{moves} move at a message boundary, {} failover",
        a.node.counters().failovers
    );
    let stats = to_c.stats()?;
    println!(
        "connection to c: {} flow, smallest round trip {} us, window {} KiB",
        stats.flows,
        stats.delivery.min_rtt_ns / 1000,
        stats.delivery.window_bytes >> 10
    );
    assert_eq!((moves, a.node.counters().failovers), (1, 1));
    Ok(())
}
