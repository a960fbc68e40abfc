//! A network that loses, duplicates, delays and reorders datagrams.

use super::Rng;
use crate::message::Mad;
use std::collections::BTreeMap;
use trunkline_conn::time::{Instant, MILLISECOND};

/// What the network does to datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) loss_per_mille: u64,
    pub(crate) duplicate_per_mille: u64,
    /// Longest delay; each datagram draws its own, so that they overtake each other.
    pub(crate) delay_ns: u64,
}

impl Weather {
    pub(crate) const CLEAR: Self = Self {
        loss_per_mille: 0,
        duplicate_per_mille: 0,
        delay_ns: MILLISECOND,
    };

    /// 20 to 40 % loss, up to 20 % duplicates, delays up to 60 ms.
    pub(crate) fn bad(random: &mut Rng) -> Self {
        Self {
            loss_per_mille: 200 + random.below(201),
            duplicate_per_mille: random.below(200),
            delay_ns: MILLISECOND * (1 + random.below(60)),
        }
    }
}

/// Datagrams under way.
#[derive(Debug)]
pub(crate) struct Air {
    pub(crate) weather: Weather,
    /// By time of arrival: from, to, bytes.
    flying: BTreeMap<(Instant, u64), (u8, u8, Mad)>,
    serial: u64,
}

impl Air {
    pub(crate) const fn new(weather: Weather) -> Self {
        Self {
            weather,
            flying: BTreeMap::new(),
            serial: 0,
        }
    }

    pub(crate) fn send(&mut self, now: Instant, from: u8, to: u8, mad: Mad, random: &mut Rng) {
        let copies = 1 + u64::from(random.chance(1_000 * self.weather.duplicate_per_mille));
        for _ in 0..copies {
            if !random.chance(1_000 * self.weather.loss_per_mille) {
                let delay = random.below(self.weather.delay_ns) + 1;
                self.serial += 1;
                self.flying
                    .insert((now + delay, self.serial), (from, to, mad));
            }
        }
    }

    /// When the next one arrives.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.flying.first_key_value().map(|(&(at, _), _)| at)
    }

    /// The one that arrives next: from, to, bytes.
    pub(crate) fn land(&mut self) -> Option<(u8, u8, Mad)> {
        self.flying.pop_first().map(|(_, datagram)| datagram)
    }
}
