//! Nodes and the processes on them: how they start.

use crate::area::Area;
use crate::endpoint::{Process, Receives, WORDS};
use crate::failure::{Failure, Verdict};
use crate::options::{between, pick};
use crate::words::{Cell, Counter};
use crate::world::World;
use std::time::Duration;
use trunkline::{Access, Drive, Node};
use trunkline_wire::Workers;

/// Slots of an SRQ, and bytes of each.
const SHARED_SLOTS: usize = 48;

/// A call that must not fail did.
pub(crate) fn refused(what: &'static str) -> impl FnOnce(trunkline::Error) -> Failure {
    move |error| Failure::wrong(format!("{what}: {error}"))
}

impl World {
    /// Random bytes.
    pub(crate) fn noise(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.random.next_u64().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Starts a node, as a new incarnation if there was one before.
    pub(crate) fn boot(&mut self, index: usize) -> Verdict {
        self.act("boot", index, self.places[index].starts as usize);
        let workers = self.draw_workers();
        let ports = self.network.plug(index, workers, self.options.port);
        let place = &mut self.places[index];
        place.starts += 1;
        let seed = self.random.next_u64();
        let options = &self.options;
        let node = Node::builder()
            .address(self.addresses[index])
            .drive(Drive::Inline)
            .clock(place.clock.clone())
            .seed(seed)
            .pool(options.pool)
            .control(options.control)
            .window(options.window)
            .staging(options.staging)
            .peer_timeout(Duration::from_nanos(options.peer_timeout_ns))
            .max_datagram(options.port.max_datagram as u32)
            .workers(workers.count())
            .build_on_all(ports)
            .map_err(refused("start of a node"))?;
        place.node = Some(node);
        place.stopped = vec![0; workers.count().into()];
        place.stirred = true;
        if index == self.options.nodes {
            // The liar has no programs that a model knows.
            return Ok(());
        }
        for process in 0..self.options.processes {
            let made = self
                .make_process(index, process)
                .map_err(refused("set-up of a process"))?;
            self.places[index].processes.push(made);
            self.top_up_shared(index, process)?;
        }
        Ok(())
    }

    /// How many workers a node has that starts now.
    fn draw_workers(&mut self) -> Workers {
        let count = match self.options.workers {
            1 => 1,
            most => between(&mut self.random, 1, most.into()) as u8,
        };
        Workers::new(count).expect("options allow few workers")
    }

    fn make_process(&mut self, node: usize, process: usize) -> Result<Process, trunkline::Error> {
        let handle = self.places[node].node.clone().expect("it was just started");
        let pd = handle.alloc_pd();
        let queues = pick(&mut self.random, &[1, 1, 2]);
        let cqs = (0..queues)
            .map(|_| handle.create_cq(16_384))
            .collect::<Result<_, _>>()?;
        let name = |what: &str| format!("{what} of process {process} of node {node}");
        let words = Area::new(&pd, vec![0; 2 * WORDS * 8], Access::ALL, name("the words"))?;
        let slot = self.options.largest.min(10_000);
        let count = pick(&mut self.random, &[4, 16, SHARED_SLOTS]);
        let content = self.noise(Receives::bytes(count, slot));
        let area = Area::new(&pd, content, Access::LOCAL_WRITE, name("the SRQ memory"))?;
        let random = &mut self.random;
        let receives = Receives::new(0, count, slot, false, || {
            random.below(slot as u64 + 1) as usize
        });
        let srq = pd.create_srq(count as u32, 4)?;
        Ok(Process {
            pd,
            cqs,
            words,
            counters: (0..WORDS).map(|_| Counter::default()).collect(),
            cells: (0..WORDS).map(|_| Cell::default()).collect(),
            srq: Some((srq, area, receives)),
            stopped_until: 0,
            top_up_due: false,
        })
    }
}
