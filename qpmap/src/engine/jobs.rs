//! Responses: kept from the execution of a READ or atomic until its requester has the result.

use super::qp::Flags;
use super::{Engine, Platform};
use crate::order::before;
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
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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

    /// Whether it is read from memory when it is sent.
    pub(crate) const fn reads_memory(&self) -> bool {
        matches!(self.outcome, Outcome::Read { .. })
    }

    pub(crate) const fn value_bytes(&self) -> [u8; 8] {
        match self.outcome {
            Outcome::Read { .. } => [0; 8],
            Outcome::Value(value) => value.to_be_bytes(),
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Makes room for the response to message `msn`, before which `ahead` READs and atomics of its
    /// requester are outstanding: so it says, and those before them it has done with. `false`: they
    /// are more than this QP allows.
    ///
    /// What is kept is bounded by that limit, and nothing that the requester may still ask for goes
    /// before it says so.
    pub(crate) fn make_room(&mut self, flow: u32, msn: u32, ahead: u32) -> bool {
        let qp = self.flows[flow].qp;
        let limit = u32::from(self.cold(qp).attributes.max_dest_rd_atomic);
        if ahead >= limit {
            return false;
        }
        let earlier = |job: &&Job| before(job.msn, msn);
        let kept = self.jobs_of(flow).filter(earlier).count() as u32;
        for _ in ahead..kept {
            let oldest = self.flows[flow].jobs;
            self.remove_job(flow, oldest);
        }
        u32::from(self.flows[flow].jobs_len) < limit
    }

    fn jobs_of(&self, flow: u32) -> impl Iterator<Item = &Job> {
        let first = self.jobs.get(self.flows[flow].jobs);
        std::iter::successors(first, |job| self.jobs.get(job.next))
    }

    /// Keeps a response, in the order of messages.
    pub(crate) fn add_job(&mut self, flow: u32, msn: u32, round: u8, outcome: Outcome) {
        self.job_serial = self.job_serial.wrapping_add(1);
        let (mut last, mut next) = (NONE, self.flows[flow].jobs);
        while let Some(job) = self.jobs.get(next).filter(|job| before(job.msn, msn)) {
            (last, next) = (next, job.next);
        }
        let index = self.jobs.insert(Job {
            next,
            serial: self.job_serial,
            msn,
            round,
            sent_all: false,
            outcome,
            sent_bytes: 0,
            unacked: 0,
        });
        match last {
            NONE => self.flows[flow].jobs = index,
            last => self.jobs[last].next = index,
        }
        self.flows[flow].jobs_len += 1;
        self.wake(flow);
    }

    /// What the response to message `msn` carries, while it is kept.
    pub(crate) fn outcome_of(&self, flow: u32, msn: u32) -> Option<Outcome> {
        let job = self.jobs_of(flow).find(|job| job.msn == msn)?;
        Some(job.outcome)
    }

    /// Sends the response to message `msn`, which is kept, from its beginning.
    pub(crate) fn answer_again(&mut self, flow: u32, msn: u32, round: u8) {
        self.job_serial = self.job_serial.wrapping_add(1);
        let mut at = self.flows[flow].jobs;
        while let Some(job) = self.jobs.get_mut(at) {
            if job.msn == msn {
                // What is still in flight of it counts no more.
                (job.serial, job.round) = (self.job_serial, round);
                (job.sent_all, job.sent_bytes, job.unacked) = (false, 0, 0);
                break;
            }
            at = job.next;
        }
        self.wake(flow);
    }

    /// Drops the responses to message `msn` and later ones.
    pub(crate) fn drop_jobs_from(&mut self, flow: u32, msn: u32) {
        self.drop_jobs(flow, |job| !before(job.msn, msn));
    }

    pub(crate) fn drop_jobs(&mut self, flow: u32, which: impl Fn(&Job) -> bool) {
        let mut at = self.flows[flow].jobs;
        while let Some(job) = self.jobs.get(at) {
            let next = job.next;
            if which(job) {
                self.remove_job(flow, at);
            }
            at = next;
        }
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
            if self.flows[flow].ending.is_due() {
                self.notice(flow);
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
        if self.flows[flow].ending.is_untold() && !record.reads_memory() {
            // The peer has to have it before it hears of the end.
            (record.sent_all, record.sent_bytes, record.unacked) = (false, 0, 0);
            self.wake(flow);
            return;
        }
        if record.reads_memory() {
            self.remove_job(flow, job);
        }
        if self.flows[flow].ending.is_last() {
            self.notice(flow);
            return;
        }
        self.flows[flow].flags.set(Flags::LOST);
        self.answer(flow);
    }
}
