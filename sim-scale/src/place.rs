//! A node's place in the cluster, and how its workers get their turns.

use crate::endpoint::Process;
use crate::failure::{Failure, Verdict};
use crate::world::World;
use std::sync::Arc;
use trunkline::{Clock, Connection, Node};
use trunkline_wire::Workers;

/// Polls of one node at one instant after which it is clear that it will never be quiet.
const RESTLESS: u32 = 20_000;

/// What a connection of a program's own connects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ends {
    /// The worker at this end.
    pub(crate) worker: u8,
    /// The node at the other, which of its lives, and its worker out of so many. One that starts
    /// again is another peer, though the connection to the one before may seem open for a while.
    pub(crate) node: usize,
    pub(crate) life: u64,
    pub(crate) peer_worker: (u8, Workers),
}

/// A node's place in the cluster.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) node: Option<Node>,
    pub(crate) clock: Clock,
    pub(crate) processes: Vec<Process>,
    pub(crate) starts: u64,
    /// Connections that the program opened for itself, with what they connect.
    pub(crate) own: Vec<(Ends, Arc<Connection>)>,
    /// The world did something to it: poll it.
    pub(crate) stirred: bool,
    /// By worker: it gets no processor before this time.
    pub(crate) stopped: Vec<u64>,
}

impl Place {
    /// The workers that have a processor.
    fn running(&self, now: u64) -> impl Iterator<Item = u8> {
        let workers = (0..).zip(&self.stopped);
        workers.filter_map(move |(worker, until)| (*until <= now).then_some(worker))
    }

    /// When a timer of the node is looked at next.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let node = self.node.as_ref()?;
        let workers = (0..).zip(&self.stopped);
        let due = workers.filter_map(|(worker, until)| {
            Some(node.worker_timeout(worker)?.as_nanos().max(*until))
        });
        due.min()
    }
}

impl World {
    /// Polls every node that has something to do until none has.
    pub(crate) fn poll_nodes(&mut self) -> Verdict {
        for index in 0..self.places.len() {
            if !std::mem::take(&mut self.places[index].stirred) {
                continue;
            }
            let Some(node) = self.places[index].node.clone() else {
                continue;
            };
            let mut polls = 0;
            loop {
                self.poll_workers(index, &node)
                    .map_err(|error| Failure::wrong(format!("node {index}: {error}")))?;
                let Some(why) = self.what_is_left(index, &node) else {
                    break;
                };
                polls += 1;
                if polls > RESTLESS {
                    return Err(Failure::stuck(format!(
                        "node {index} has been busy for {RESTLESS} rounds at one instant ({why})"
                    )));
                }
            }
            self.note_ends(index);
            self.look_around(index)?;
        }
        Ok(())
    }

    /// One round of all workers of a node, in any order.
    fn poll_workers(&mut self, index: usize, node: &Node) -> Result<(), trunkline::Error> {
        let mut order: Vec<u8> = self.places[index].running(self.now).collect();
        for place in (1..order.len()).rev() {
            let other = self.random.below(place as u64 + 1);
            order.swap(place, other as usize);
        }
        order
            .into_iter()
            .try_for_each(|worker| node.poll_worker(worker).map(drop))
    }

    /// What keeps the workers of a node from being quiet.
    fn what_is_left(&self, index: usize, node: &Node) -> Option<&'static str> {
        self.places[index].running(self.now).find_map(|worker| {
            let timeout = node.worker_timeout(worker);
            if timeout.is_some_and(|at| at.as_nanos() <= self.now) {
                Some("a timer is due")
            } else if self.network.net().has_mail(index, worker) {
                Some("packets wait")
            } else {
                node.is_worker_busy(worker).then_some("it says so")
            }
        })
    }
}
