//! Requests that a server has of one connection.

use crate::channel::Channel;
use crate::error::Refusal;
use crate::frame::{Body, Entry, Extent, HEADER, Reason};
use crate::lane::{Lane, Work};
use crate::memory::Region;
use crate::outbox::Outbox;
use crate::transfers::{Memory, Then, Transfer, Transfers};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::task::AbortHandle;

/// Why a request has no response, as the server says it.
#[derive(Debug)]
pub(crate) enum Failure {
    Service(Refusal),
    Deadline,
}

/// A request that takes its time.
#[derive(Debug)]
enum Running {
    /// Its bytes are on their way.
    Reading,
    /// The same, and nobody waits for it any more.
    Cancelled,
    /// Its service has not answered at once; the task of it, as soon as there is one.
    Runs(Option<AbortHandle>),
}

/// Each request is answered exactly once.
#[derive(Debug)]
pub(crate) struct Served {
    limit: u32,
    /// Requests whose response has not gone out.
    unanswered: u32,
    running: HashMap<u32, Running>,
    /// Responses that the client reads.
    lent: HashMap<u32, Region>,
}

impl Served {
    pub(crate) fn new(limit: u16) -> Self {
        Self {
            limit: limit.into(),
            unanswered: 0,
            running: HashMap::new(),
            lent: HashMap::new(),
        }
    }

    /// Whether anything is left to answer or to be read.
    pub(crate) fn is_busy(&self) -> bool {
        self.unanswered > 0 || !self.lent.is_empty()
    }

    /// Takes up an entry.
    ///
    /// # Errors
    /// No client says it.
    pub(crate) fn take_up(
        &mut self,
        channel: &Arc<Channel>,
        entry: Entry,
        drains: bool,
        transfers: &mut Transfers,
        outbox: &mut Outbox,
        work: &mut Work,
    ) -> Result<(), &'static str> {
        let lane = &channel.lane;
        match entry {
            Entry::Request {
                id,
                deadline,
                place,
                body,
            } => {
                if self.unanswered + self.lent.len() as u32 >= self.limit {
                    return Err("more requests than it may have under way");
                }
                if self.running.contains_key(&id) || self.lent.contains_key(&id) {
                    return Err("a request under an ID that is another's");
                }
                self.unanswered += 1;
                if drains {
                    refuse(outbox, id, Reason::Draining);
                    return Ok(());
                }
                let max_body = lane.options.max_body;
                match body {
                    Body::Here(bytes) if bytes.len() <= max_body as usize => {
                        work.request(channel, id, deadline, place, bytes);
                    }
                    Body::At(extent) if extent.length <= max_body => {
                        let then = Then::Run {
                            id,
                            deadline,
                            place,
                        };
                        self.read(lane, id, extent, then, transfers, outbox);
                    }
                    _ => refuse(outbox, id, Reason::TooLong),
                }
            }
            Entry::Cancel { id } => self.cancel(lane, id, outbox),
            Entry::Release { id } => {
                self.lent
                    .remove(&id)
                    .ok_or("it has read what was not lent to it")?;
            }
            Entry::Response { .. } | Entry::Written { .. } | Entry::Refused { .. } => {
                return Err("a client that answers");
            }
        }
        Ok(())
    }

    /// Reads the bytes of a request.
    fn read(
        &mut self,
        lane: &Lane,
        id: u32,
        extent: Extent,
        then: Then,
        transfers: &mut Transfers,
        outbox: &mut Outbox,
    ) {
        let Some(region) = lane.regions.admit(extent.length) else {
            lane.counters.requests_overloaded.add(1);
            return refuse(outbox, id, Reason::Overloaded);
        };
        self.running.insert(id, Running::Reading);
        transfers.push(Transfer {
            memory: Memory::Region(region),
            extent,
            then,
            written: None,
        });
    }

    /// The bytes of a request are here: returns whether it is to run.
    pub(crate) fn arrived(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) -> bool {
        let cancelled = matches!(self.running.remove(&id), Some(Running::Cancelled));
        if cancelled {
            lane.counters.requests_cancelled.add(1);
            refuse(outbox, id, Reason::Cancelled);
        }
        !cancelled
    }

    /// Nobody waits for a request any more. One that has its answer already crossed that.
    fn cancel(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) {
        match self.running.get_mut(&id) {
            Some(running @ Running::Reading) => *running = Running::Cancelled,
            Some(Running::Runs(Some(task))) => {
                task.abort();
                self.running.remove(&id);
                lane.counters.requests_cancelled.add(1);
                refuse(outbox, id, Reason::Cancelled);
            }
            Some(Running::Runs(None) | Running::Cancelled) | None => {}
        }
    }

    /// The service of a request does not answer at once: a task of its own will.
    pub(crate) fn run(&mut self, id: u32) {
        self.running.insert(id, Running::Runs(None));
    }

    /// The task of a request, which may have ended since it began.
    pub(crate) fn runs_in(&mut self, id: u32, task: AbortHandle) {
        if let Some(running) = self.running.get_mut(&id) {
            *running = Running::Runs(Some(task));
        }
    }

    /// What a service has answered goes out, unless the request was cancelled. `most`: bytes of a
    /// message; `max_body`: of what the client takes.
    pub(crate) fn answer(
        &mut self,
        lane: &Lane,
        answer: Answer,
        takes: (usize, u32),
        transfers: &mut Transfers,
        outbox: &mut Outbox,
    ) {
        let Answer {
            id,
            place,
            began,
            outcome,
        } = answer;
        if self.running.remove(&id).is_none() && began {
            return;
        }
        let (most, max_body) = takes;
        match outcome {
            Ok(bytes) if bytes.len() > max_body as usize => refuse(outbox, id, Reason::TooLong),
            Ok(bytes) => match place {
                Some(place) => write(lane, id, &bytes, place, transfers, outbox),
                None if HEADER + bytes.len() <= most => {
                    let body = Body::Here(bytes);
                    outbox.push(&Entry::Response { id, body });
                }
                None => match lane.regions.offer(&bytes) {
                    Some(region) => {
                        let body = Body::At(region.extent());
                        outbox.push(&Entry::Response { id, body });
                        self.lent.insert(id, region);
                    }
                    None => refuse_in_words(outbox, id, &no_memory(), most),
                },
            },
            Err(Failure::Deadline) => {
                lane.counters.requests_cancelled.add(1);
                refuse(outbox, id, Reason::Deadline);
            }
            Err(Failure::Service(refusal)) => {
                lane.counters.requests_refused.add(1);
                refuse_in_words(outbox, id, &refusal, most);
            }
        }
    }

    /// So many responses have gone out.
    pub(crate) fn answered(&mut self, responses: u32) {
        self.unanswered = self.unanswered.saturating_sub(responses);
    }

    /// The connection has failed: nobody waits any more.
    pub(crate) fn fail(&mut self, lane: &Lane) {
        for (_, running) in self.running.drain() {
            lane.counters.requests_cancelled.add(1);
            if let Running::Runs(Some(task)) = running {
                task.abort();
            }
        }
        self.lent.clear();
    }
}

/// What came of a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) id: u32,
    pub(crate) place: Option<Extent>,
    /// Its service did not answer at once, so that it may have been cancelled.
    pub(crate) began: bool,
    pub(crate) outcome: Result<Bytes, Failure>,
}

fn write(
    lane: &Lane,
    id: u32,
    bytes: &Bytes,
    place: Extent,
    transfers: &mut Transfers,
    outbox: &mut Outbox,
) {
    if bytes.len() > place.length as usize {
        refuse(outbox, id, Reason::TooLong);
    } else if bytes.is_empty() {
        outbox.push(&Entry::Written { id, length: 0 });
    } else if let Some(region) = lane.regions.hold(bytes) {
        let length = bytes.len() as u32;
        transfers.push(Transfer {
            memory: Memory::Region(region),
            extent: Extent { length, ..place },
            then: Then::Nothing,
            written: Some(id),
        });
    } else {
        refuse_in_words(outbox, id, &no_memory(), HEADER + 64);
    }
}

fn no_memory() -> Refusal {
    Refusal::new(0, "the server has no memory for the response")
}

fn refuse(outbox: &mut Outbox, id: u32, reason: Reason) {
    outbox.push(&Entry::Refused {
        id,
        reason,
        code: 0,
        text: Bytes::new(),
    });
}

fn refuse_in_words(outbox: &mut Outbox, id: u32, refusal: &Refusal, most: usize) {
    let mut end = refusal.message.len().min(most - HEADER);
    while !refusal.message.is_char_boundary(end) {
        end -= 1;
    }
    outbox.push(&Entry::Refused {
        id,
        reason: Reason::Service,
        code: refusal.code,
        text: Bytes::copy_from_slice(&refusal.message.as_bytes()[..end]),
    });
}
