//! Managers, each with the least of a program above it, on a bad network in virtual time.

use super::air::{Air, Weather};
use super::{Rng, address, path};
use crate::event::{Outgoing, Route};
use crate::message::Mad;
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::Path;

/// A manager and its program.
pub(crate) trait Party {
    /// When one of them does something by itself.
    fn next(&self) -> Option<Instant>;
    fn handle_mad(&mut self, now: Instant, from: &Path, mad: &Mad);
    fn handle_timeout(&mut self, now: Instant);
    /// The program takes up what the manager says: what there is to send, `None` when all is quiet.
    fn take_up(&mut self, now: Instant, random: &mut Rng) -> Option<Vec<Outgoing>>;
}

/// Parties at hosts 1, 2, ...
#[derive(Debug)]
pub(crate) struct Network<P> {
    pub(crate) parties: Vec<P>,
    pub(crate) now: Instant,
    pub(crate) random: Rng,
    pub(crate) air: Air,
}

impl<P: Party> Network<P> {
    pub(crate) fn of(
        seed: u64,
        hosts: u8,
        weather: Weather,
        mut party: impl FnMut(u8, &mut Rng) -> P,
    ) -> Self {
        let mut random = Rng::new(seed);
        Self {
            parties: (1..=hosts).map(|host| party(host, &mut random)).collect(),
            now: Instant::ZERO,
            air: Air::new(weather),
            random,
        }
    }

    pub(crate) fn route(from: usize, to: usize) -> Route {
        Route {
            local: address(from as u8 + 1),
            remote: address(to as u8 + 1),
        }
    }

    /// Lets a party do all there is to do for it now.
    pub(crate) fn settle(&mut self, index: usize) {
        let from = index as u8 + 1;
        while let Some(sent) = self.parties[index].take_up(self.now, &mut self.random) {
            for out in sent {
                assert_eq!(out.route.local, address(from));
                let to = host_of(out.route);
                assert!(usize::from(to) <= self.parties.len(), "nobody is at {to}");
                self.air.send(self.now, from, to, out.mad, &mut self.random);
            }
        }
    }

    /// Lets time pass until `end`.
    pub(crate) fn run(&mut self, end: Instant) {
        loop {
            let arrival = self.air.next();
            let due = self.parties.iter().filter_map(Party::next);
            let next = due.chain(arrival).min();
            let Some(next) = next.filter(|&next| next <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (from, to, mad) = self.air.land().expect("one arrives");
                let index = usize::from(to) - 1;
                let from = path(address(from), address(to));
                self.parties[index].handle_mad(self.now, &from, &mad);
                self.settle(index);
            }
            for index in 0..self.parties.len() {
                self.parties[index].handle_timeout(self.now);
                self.settle(index);
            }
        }
    }
}

/// The host at the other end of a route.
pub(crate) fn host_of(route: Route) -> u8 {
    (1..=9)
        .find(|&host| address(host) == route.remote)
        .expect("nobody else is addressed")
}

/// What comes of as many runs as the environment asks for, each with a seed of its own.
pub(crate) fn run_seeds<T>(default: u64, run: fn(u64) -> T) -> Vec<T> {
    let seeds = std::env::var("TRUNKLINE_CM_SEEDS").ok();
    let seeds = seeds.map_or(default, |seeds| seeds.parse().expect("a number of seeds"));
    let outcome = |seed| {
        let outcome = std::panic::catch_unwind(|| run(seed));
        outcome.unwrap_or_else(|_| panic!("seed {seed} fails"))
    };
    (0..seeds).map(outcome).collect()
}
