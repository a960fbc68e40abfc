//! Responses: kept from the execution of a READ or atomic until its requester has the result.

use super::qp::Flags;
use super::{Engine, Platform};
use crate::slab::NONE;
use trunkline_wire::Rkey;

/// A response that is being sent or waits for its acknowledgement.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) next: u32,
    pub(crate) serial: u32,
    pub(crate) msn: u32,
    pub(crate) round: u8,
    pub(crate) sent_all: bool,
    pub(crate) outcome: Outcome,
    pub(crate) sent_bytes: u32,
    /// Packets of it in flight.
    pub(crate) unacked: u32,
}

/// What it carries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// Memory, read when the packet is built.
    Read { key: Rkey, addr: u64, length: u32 },
    /// What an atomic found.
    Value(u64),
}

impl Job {
    pub(crate) const fn length(&self) -> u32 {
        match self.outcome {
            Outcome::Read { length, .. } => length,
            Outcome::Value(_) => 8,
        }
    }

    pub(crate) const fn value_bytes(&self) -> [u8; 8] {
        match self.outcome {
            Outcome::Read { .. } => [0; 8],
            Outcome::Value(value) => value.to_be_bytes(),
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Whether one more response may be kept. The peer has at most `max_dest_rd_atomic` open, but
    /// we learn late which of them it has got: as many again may wait for their acknowledgement.
    pub(crate) fn make_room(&mut self, flow: u32) -> bool {
        let record = &self.flows[flow];
        let limit = self.cold(record.qp).attributes.max_dest_rd_atomic.max(1);
        if record.jobs_len < limit.saturating_mul(2) {
            return true;
        }
        let oldest = record.jobs;
        let done = self
            .jobs
            .get(oldest)
            .is_some_and(|job| job.sent_all && job.unacked == 0);
        if done {
            self.remove_job(flow, oldest);
        }
        done
    }

    pub(crate) fn add_job(&mut self, flow: u32, msn: u32, round: u8, outcome: Outcome) {
        self.job_serial = self.job_serial.wrapping_add(1);
        let index = self.jobs.insert(Job {
            next: NONE,
            serial: self.job_serial,
            msn,
            round,
            sent_all: false,
            outcome,
            sent_bytes: 0,
            unacked: 0,
        });
        let record = &mut self.flows[flow];
        record.jobs_len += 1;
        let mut at = record.jobs;
        if at == NONE {
            record.jobs = index;
        } else {
            while self.jobs[at].next != NONE {
                at = self.jobs[at].next;
            }
            self.jobs[at].next = index;
        }
        self.wake(flow);
    }

    pub(crate) fn remove_job(&mut self, flow: u32, job: u32) {
        let next = self.jobs.remove(job).next;
        let record = &mut self.flows[flow];
        record.jobs_len -= 1;
        if record.jobs == job {
            record.jobs = next;
            return;
        }
        let mut at = record.jobs;
        while self.jobs[at].next != job {
            at = self.jobs[at].next;
        }
        self.jobs[at].next = next;
    }

    /// The response a flow sends from next.
    pub(crate) fn next_response(&self, flow: u32) -> Option<u32> {
        let mut at = self.flows[flow].jobs;
        while let Some(job) = self.jobs.get(at) {
            if !job.sent_all {
                return Some(at);
            }
            at = job.next;
        }
        None
    }

    /// A packet of a response was acknowledged: the peer has used it.
    pub(crate) fn response_acked(&mut self, flow: u32, job: u32, serial: u32) {
        let Some(record) = self.jobs.get_mut(job).filter(|job| job.serial == serial) else {
            return;
        };
        record.unacked = record.unacked.saturating_sub(1);
        if record.unacked == 0 && record.sent_all {
            self.remove_job(flow, job);
            if self.flows[flow].staged != NONE {
                self.advance(flow);
            }
        }
    }

    /// A packet of a response went down with its connection. The peer is told, for its own end of
    /// that connection, or the one its requests took, may live on: it asks again. The result of an
    /// atomic is kept until it does.
    pub(crate) fn response_lost(&mut self, flow: u32, job: u32, serial: u32) {
        let Some(record) = self.jobs.get_mut(job).filter(|job| job.serial == serial) else {
            return;
        };
        record.unacked = record.unacked.saturating_sub(1);
        if matches!(record.outcome, Outcome::Read { .. }) {
            self.remove_job(flow, job);
        }
        self.flows[flow].flags.set(Flags::LOST);
        self.answer(flow);
    }
}
