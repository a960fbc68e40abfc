//! Requests that a server has of one connection.

use crate::channel::Channel;
use crate::error::Refusal;
use crate::frame::{Body, Entry, Extent, HEADER, Reason};
use crate::lane::{Lane, Work};
use crate::memory::{Charge, Region, Share};
use crate::outbox::Outbox;
use crate::service::{Head, Incoming};
use crate::transfers::{Memory, Then, Transfer, Transfers};
use bytes::Bytes;
use std::sync::Arc;
use tokio::task::AbortHandle;

/// Why a request has no response, as the server says it.
#[derive(Debug)]
pub(crate) enum Failure {
    Service(Refusal),
    Deadline,
}

/// What has become of the request of a slot.
#[derive(Debug)]
enum Stage {
    /// There is none.
    Free,
    /// Its bytes are on their way.
    Reading,
    /// They are here, and its service has not begun.
    Due,
    /// Its service has not answered at once; the task of it, as soon as there is one.
    Runs(Option<AbortHandle>),
    /// Nobody waits for it any more, and it is about to begin, or has.
    Cancelled,
    /// The client reads its response.
    Lent { _bytes: Box<Region> },
}

/// Room for a request, under the low half of its ID.
#[derive(Debug)]
struct Slot {
    id: u32,
    /// Tells it apart from a later one under the same ID.
    serial: u32,
    stage: Stage,
    /// What it takes of what may be kept for peers.
    _charge: Option<Charge>,
}

impl Slot {
    const FREE: Self = Self {
        id: 0,
        serial: 0,
        stage: Stage::Free,
        _charge: None,
    };
}

const _: () = assert!(size_of::<Slot>() <= 40);

/// Each request is answered exactly once.
#[derive(Debug)]
pub(crate) struct Served {
    limit: u16,
    share: Arc<Share>,
    /// As far as they have been used.
    slots: Vec<Slot>,
    next_serial: u32,
    /// Requests whose response has not gone out.
    unanswered: u32,
    /// Responses that the client reads, and how many of them have not gone out.
    lent: u32,
    lent_due: u32,
}

impl Served {
    pub(crate) const fn new(limit: u16, share: Arc<Share>) -> Self {
        Self {
            limit,
            share,
            slots: Vec::new(),
            next_serial: 0,
            unanswered: 0,
            lent: 0,
            lent_due: 0,
        }
    }

    /// Whether anything is left to answer or to be read.
    pub(crate) const fn is_busy(&self) -> bool {
        self.unanswered > 0 || self.lent > 0
    }

    /// Requests that the client may not take for answered and done with.
    const fn under_way(&self) -> u32 {
        self.unanswered + self.lent.saturating_sub(self.lent_due)
    }

    /// The slot of a request that is under way.
    fn slot(&mut self, id: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(id as u16));
        slot.filter(|slot| slot.id == id && !matches!(slot.stage, Stage::Free))
    }

    /// Sees that a request may come under an ID.
    ///
    /// # Errors
    /// No client has so many, or another one has it.
    fn admit(&mut self, id: u32) -> Result<(), &'static str> {
        let at = id as u16;
        if self.under_way() >= self.limit.into() || at >= self.limit {
            return Err("more requests than it may have under way");
        }
        let at = usize::from(at);
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || Slot::FREE);
        }
        match self.slots[at].stage {
            Stage::Free => Ok(()),
            _ => Err("a request under an ID that is another's"),
        }
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
                self.admit(id)?;
                self.unanswered += 1;
                if drains {
                    refuse(outbox, id, Reason::Draining);
                    return Ok(());
                }
                let head = Head {
                    id,
                    serial: self.next_serial(),
                    deadline,
                    place,
                };
                let max_body = lane.options.max_body;
                match body {
                    Body::Here(bytes) if bytes.len() <= max_body as usize => {
                        self.expect(head, Stage::Due, None);
                        work.requests.push(Incoming::new(head, bytes));
                    }
                    Body::At(extent) if extent.length <= max_body => {
                        self.read(lane, head, extent, transfers, outbox);
                    }
                    _ => refuse(outbox, id, Reason::TooLong),
                }
            }
            Entry::Cancel { id } => self.cancel(lane, id, outbox),
            Entry::Release { id } => self.release(id)?,
            Entry::Response { .. } | Entry::Written { .. } | Entry::Refused { .. } => {
                return Err("a client that answers");
            }
        }
        Ok(())
    }

    /// The client has read a response.
    ///
    /// # Errors
    /// None was lent to it under this ID.
    fn release(&mut self, id: u32) -> Result<(), &'static str> {
        let slot = self.slot(id);
        let slot = slot.filter(|slot| matches!(slot.stage, Stage::Lent { .. }));
        *slot.ok_or("it has read what was not lent to it")? = Slot::FREE;
        self.lent -= 1;
        Ok(())
    }

    /// What tells a request apart from those before it.
    const fn next_serial(&mut self) -> u32 {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        serial
    }

    /// A request that was admitted has come.
    fn expect(&mut self, head: Head, stage: Stage, charge: Option<Charge>) {
        let Head { id, serial, .. } = head;
        self.slots[usize::from(id as u16)] = Slot {
            id,
            serial,
            stage,
            _charge: charge,
        };
    }

    /// Reads the bytes of a request.
    fn read(
        &mut self,
        lane: &Lane,
        head: Head,
        extent: Extent,
        transfers: &mut Transfers,
        outbox: &mut Outbox,
    ) {
        let Some((region, charge)) = self.share.admit(extent.length) else {
            lane.counters.requests_overloaded.add(1);
            return refuse(outbox, head.id, Reason::Overloaded);
        };
        self.expect(head, Stage::Reading, Some(charge));
        transfers.push(Transfer {
            memory: Memory::Region(region),
            extent,
            then: Then::Run(head),
            written: None,
        });
    }

    /// The bytes of a request are here: returns whether it is to run.
    pub(crate) fn arrived(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) -> bool {
        let Some(slot) = self.slot(id) else {
            return false;
        };
        let runs = matches!(slot.stage, Stage::Reading);
        if runs {
            slot.stage = Stage::Due;
        } else {
            self.dismiss(lane, id, outbox);
        }
        runs
    }

    /// A request that nobody waits for ends.
    fn dismiss(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) {
        if let Some(slot) = self.slot(id) {
            *slot = Slot::FREE;
        }
        lane.counters.requests_cancelled.add(1);
        refuse(outbox, id, Reason::Cancelled);
    }

    /// Nobody waits for a request any more. One that has its answer already crossed that.
    fn cancel(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        match &slot.stage {
            Stage::Runs(Some(task)) => {
                task.abort();
                self.dismiss(lane, id, outbox);
            }
            Stage::Reading | Stage::Due | Stage::Runs(None) => slot.stage = Stage::Cancelled,
            Stage::Free | Stage::Cancelled | Stage::Lent { .. } => {}
        }
    }

    /// The service of a request is about to begin: returns whether anybody waits for it.
    pub(crate) fn begin(&mut self, lane: &Lane, id: u32, outbox: &mut Outbox) -> bool {
        let Some(slot) = self.slot(id) else {
            return false;
        };
        let over = matches!(slot.stage, Stage::Cancelled);
        if over {
            self.dismiss(lane, id, outbox);
        }
        !over
    }

    /// It has not answered at once: a task of its own will.
    pub(crate) fn runs(&mut self, id: u32) {
        if let Some(slot) = self.slot(id)
            && matches!(slot.stage, Stage::Due)
        {
            slot.stage = Stage::Runs(None);
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
        let slot = self.slot(id).filter(|slot| slot.serial == serial);
        let Some(slot) = slot else {
            return;
        };
        match slot.stage {
            Stage::Cancelled => {
                task.abort();
                self.dismiss(lane, id, outbox);
            }
            // Its task has ended already.
            Stage::Free | Stage::Lent { .. } => {}
            Stage::Reading | Stage::Due | Stage::Runs(_) => slot.stage = Stage::Runs(Some(task)),
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
        let Answer { head, outcome } = answer;
        let (id, serial) = (head.id, head.serial);
        let slot = self.slot(id).filter(|slot| slot.serial == serial);
        let Some(slot) = slot else {
            // It was cancelled, and is answered.
            return;
        };
        *slot = Slot::FREE;
        let (most, max_body) = takes;
        match outcome {
            Ok(bytes) if bytes.len() > max_body as usize => refuse(outbox, id, Reason::TooLong),
            Ok(bytes) => match head.place {
                Some(place) => write(&self.share, id, &bytes, place, transfers, outbox),
                None if HEADER + bytes.len() <= most => {
                    let body = Body::Here(bytes);
                    outbox.push(&Entry::Response { id, body });
                }
                None => match self.share.lend(&bytes) {
                    Some(region) => {
                        let body = Body::At(region.extent());
                        outbox.push(&Entry::Response { id, body });
                        let serial = self.next_serial();
                        let lent = Stage::Lent {
                            _bytes: Box::new(region),
                        };
                        self.expect(Head { serial, ..head }, lent, None);
                        self.lent += 1;
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
        for slot in self.slots.drain(..) {
            if let Stage::Runs(Some(task)) = &slot.stage {
                task.abort();
            }
            let waits = !matches!(slot.stage, Stage::Free | Stage::Lent { .. });
            lane.counters.requests_cancelled.add(waits.into());
        }
        self.lent = 0;
    }
}

/// What came of a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) outcome: Result<Bytes, Failure>,
}

fn write(
    share: &Arc<Share>,
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
    } else if let Some(region) = share.hold(bytes) {
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
