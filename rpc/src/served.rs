//! Requests that a server has of one connection.

use crate::channel::Channel;
use crate::error::Refusal;
use crate::frame::{Body, Entry, Extent, HEADER, Reason};
use crate::lane::{Lane, Work};
use crate::memory::{Charge, Region};
use crate::outbox::Outbox;
use crate::transfers::{Memory, Then, Transfer, Transfers};
use bytes::Bytes;
use hashbrown::HashMap;
use std::sync::Arc;
use tokio::task::AbortHandle;

/// Why a request has no response, as the server says it.
#[derive(Debug)]
pub(crate) enum Failure {
    Service(Refusal),
    Deadline,
}

/// A request that has no answer yet.
#[derive(Debug)]
struct Running {
    /// Tells it apart from a later one under the same ID.
    serial: u32,
    stage: Stage,
    /// What it takes of what may be kept for peers.
    _charge: Option<Charge>,
}

#[derive(Debug)]
enum Stage {
    /// Its bytes are on their way.
    Reading,
    /// They are here, and its service has not begun.
    Due,
    /// Its service has not answered at once; the task of it, as soon as there is one.
    Runs(Option<AbortHandle>),
    /// Nobody waits for it any more, and it is about to begin, or has.
    Cancelled,
}

/// Each request is answered exactly once.
#[derive(Debug)]
pub(crate) struct Served {
    limit: u32,
    /// Requests whose response has not gone out.
    unanswered: u32,
    running: HashMap<u32, Running>,
    next_serial: u32,
    /// Responses that the client reads, and how many of them have not gone out.
    lent: HashMap<u32, Region>,
    lent_due: u32,
}

impl Served {
    pub(crate) fn new(limit: u16) -> Self {
        Self {
            limit: limit.into(),
            unanswered: 0,
            running: HashMap::new(),
            next_serial: 0,
            lent: HashMap::new(),
            lent_due: 0,
        }
    }

    /// Whether anything is left to answer or to be read.
    pub(crate) fn is_busy(&self) -> bool {
        self.unanswered > 0 || !self.lent.is_empty()
    }

    /// Requests that the client may not take for answered and done with.
    fn under_way(&self) -> u32 {
        let lent = (self.lent.len() as u32).saturating_sub(self.lent_due);
        self.unanswered + lent
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
                if self.under_way() >= self.limit {
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
                        let serial = self.expect(id, Stage::Due, None);
                        work.request(channel, (id, serial), deadline, place, bytes);
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

    /// A request has come: returns what tells it apart.
    fn expect(&mut self, id: u32, stage: Stage, charge: Option<Charge>) -> u32 {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        let running = Running {
            serial,
            stage,
            _charge: charge,
        };
        self.running.insert(id, running);
        serial
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
        let Some((region, charge)) = lane.regions.admit(extent.length) else {
            lane.counters.requests_overloaded.add(1);
            return refuse(outbox, id, Reason::Overloaded);
        };
        self.expect(id, Stage::Reading, Some(charge));
        transfers.push(Transfer {
            memory: Memory::Region(region),
            extent,
            then,
            written: None,
        });
    }

    /// The bytes of a request are here: returns what tells it apart, if it is to run.
    pub(crate) fn arrived(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) -> Option<u32> {
        let running = self.running.get_mut(&id)?;
        match running.stage {
            Stage::Reading => {
                running.stage = Stage::Due;
                Some(running.serial)
            }
            _ => {
                self.dismiss(lane, id, outbox);
                None
            }
        }
    }

    /// A request that nobody waits for ends.
    fn dismiss(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) {
        self.running.remove(&id);
        lane.counters.requests_cancelled.add(1);
        refuse(outbox, id, Reason::Cancelled);
    }

    /// Nobody waits for a request any more. One that has its answer already crossed that.
    fn cancel(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) {
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        match &running.stage {
            Stage::Runs(Some(task)) => {
                task.abort();
                self.dismiss(lane, id, outbox);
            }
            Stage::Reading | Stage::Due | Stage::Runs(None) => running.stage = Stage::Cancelled,
            Stage::Cancelled => {}
        }
    }

    /// The service of a request is about to begin: returns whether anybody waits for it.
    pub(crate) fn begin(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) -> bool {
        let Some(running) = self.running.get(&id) else {
            return false;
        };
        let over = matches!(running.stage, Stage::Cancelled);
        if over {
            self.dismiss(lane, id, outbox);
        }
        !over
    }

    /// It has not answered at once: a task of its own will.
    pub(crate) fn runs(&mut self, id: u32) {
        if let Some(running) = self.running.get_mut(&id)
            && matches!(running.stage, Stage::Due)
        {
            running.stage = Stage::Runs(None);
        }
    }

    /// The task of a request, which may have ended since it began, or be cancelled.
    pub(crate) fn runs_in(
        &mut self,
        lane: &Lane,
        (id, serial): (u32, u32),
        task: AbortHandle,
        outbox: &mut Outbox,
    ) {
        let running = self.running.get_mut(&id);
        let Some(running) = running.filter(|running| running.serial == serial) else {
            return;
        };
        match running.stage {
            Stage::Cancelled => {
                task.abort();
                self.dismiss(lane, id, outbox);
            }
            _ => running.stage = Stage::Runs(Some(task)),
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
            serial,
            place,
            outcome,
        } = answer;
        let own = |running: &Running| running.serial == serial;
        if !self.running.get(&id).is_some_and(own) {
            // It was cancelled, and is answered.
            return;
        }
        self.running.remove(&id);
        let (most, max_body) = takes;
        match outcome {
            Ok(bytes) if bytes.len() > max_body as usize => refuse(outbox, id, Reason::TooLong),
            Ok(bytes) => match place {
                Some(place) => write(lane, id, &bytes, place, transfers, outbox),
                None if HEADER + bytes.len() <= most => {
                    let body = Body::Here(bytes);
                    outbox.push(&Entry::Response { id, body });
                }
                None => match lane.regions.lend(&bytes) {
                    Some(region) => {
                        let body = Body::At(region.extent());
                        outbox.push(&Entry::Response { id, body });
                        self.lent.insert(id, region);
                        self.lent_due += 1;
                    }
                    None => refuse_in_words(outbox, id, &no_room(), most),
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

    /// So many responses have gone out, and so many of them are to be read.
    pub(crate) fn answered(&mut self, responses: u32, lent: u32) {
        self.unanswered = self.unanswered.saturating_sub(responses);
        self.lent_due = self.lent_due.saturating_sub(lent);
    }

    /// The connection has failed: nobody waits any more.
    pub(crate) fn fail(&mut self, lane: &Lane) {
        for (_, running) in self.running.drain() {
            lane.counters.requests_cancelled.add(1);
            if let Stage::Runs(Some(task)) = running.stage {
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
    /// Tells it apart from a later request under the same ID.
    pub(crate) serial: u32,
    pub(crate) place: Option<Extent>,
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
        refuse_in_words(outbox, id, &no_room(), HEADER + 64);
    }
}

fn no_room() -> Refusal {
    Refusal::new(0, "the server has no room for the response")
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
