//! Both directions of a stream at one end: its buffers, its credits, and what has become of it.

use super::error::StreamError;
use super::frame::{Frame, Hello, Kind};
use super::reading::Unread;
use super::writing::Open;
use crate::credits::{Credits, Overgrant};
use crate::node::Shared;
use crate::rdma_cm::Connection;
use crate::waiters::Waiters;
use std::sync::Arc;
use trunkline::{Completion, Cq, Error, Mr, RecvWr, SendFlags, SendOp, SendWr, Status};

/// Receives of an end, and what it says of them. What fits into each fills a datagram, where those
/// are as large as UDP has them: smaller ones cost a third more where both ends share a CPU, fewer
/// of them an eighth more where each has one.
pub(super) const OWN: Hello = Hello {
    receives: 24,
    bytes: 60 << 10,
};
/// Messages with bytes that may be under way.
pub(super) const SENDS: u16 = 16;
/// Messages without bytes that may be.
pub(super) const CONTROLS: u16 = 3;
/// What names a send of no buffer, among completions.
const CONTROL: u64 = 1 << 32;
const END: u64 = CONTROL + 1;
const HEARD: u64 = CONTROL + 2;
/// Completions that are taken at a time.
const BATCH: usize = 16;

/// Bytes of the region that buffers are in: receives first.
pub(super) const REGION: usize = (OWN.receives as usize + SENDS as usize) * OWN.bytes as usize;

/// How far the end of what is written has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ending {
    Open,
    /// It is said when what was written before has been.
    Wanted,
    Said,
    /// The peer's node has it, and all before it.
    Done,
}

/// What the peer knows of its end having been heard. It does not hear the end of the connection
/// before: what its node has not heard of by then counts as lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Hearing {
    /// There is nothing to tell.
    Open,
    Owed,
    Said,
    Done,
}

#[derive(Debug)]
pub(super) struct Link {
    // In this order: the QP is gone before its memory is.
    connection: Connection,
    pub(super) mr: Mr,
    cq: Cq,
    /// Most bytes that a message to the peer has.
    pub(super) most: usize,
    credits: Credits,
    /// Send buffers that are free.
    pub(super) free: Vec<u16>,
    /// The message that is being filled.
    pub(super) open: Option<Open>,
    /// A message that grants receives is under way.
    granting: bool,
    pub(super) ending: Ending,
    pub(super) unread: Unread,
    hearing: Hearing,
    /// Who waits for either direction.
    waiters: Arc<Waiters>,
    pub(super) failed: Option<StreamError>,
}

/// Posts the receives of an end, before its peer can send.
///
/// # Errors
/// The QP is in no state for that.
pub(super) fn post_receives(qp: &trunkline::Qp, mr: &Mr) -> Result<(), Error> {
    (0..OWN.receives).try_for_each(|slot| post_receive(qp, mr, slot))
}

fn post_receive(qp: &trunkline::Qp, mr: &Mr, slot: u16) -> Result<(), Error> {
    let bytes = OWN.bytes as usize;
    let sges = [mr.sge(slot as usize * bytes, bytes)];
    let wr_id = slot.into();
    qp.post_recv(&[RecvWr { wr_id, sges: &sges }])
}

impl Link {
    /// A stream over a connection whose QP has its receives already.
    pub(super) fn new(
        connection: Connection,
        mr: Mr,
        (cq, waiters): (Cq, Arc<Waiters>),
        peer: Hello,
    ) -> Self {
        Self {
            connection,
            mr,
            cq,
            most: OWN.bytes.min(peer.bytes) as usize,
            credits: Credits::new(OWN.receives, peer.receives),
            free: (0..SENDS).rev().collect(),
            open: None,
            granting: false,
            ending: Ending::Open,
            unread: Unread::default(),
            hearing: Hearing::Open,
            waiters,
            failed: None,
        }
    }

    /// Takes up what has completed, and says what can be said then.
    pub(super) fn pump(&mut self) {
        let mut done = [Completion::BLANK; BATCH];
        let mut any = false;
        loop {
            // Its depth is that of both queues of the QP, so it does not overflow.
            let count = self.cq.poll(&mut done).unwrap_or(0);
            done[..count].iter().for_each(|done| self.heed(done));
            any |= count > 0;
            if count < BATCH {
                break;
            }
        }
        if any {
            self.speak();
        }
    }

    fn heed(&mut self, done: &Completion) {
        if done.status != Status::Success {
            let down = self.connection.node().verbs().health().down;
            let why = down.map_or(StreamError::of(done), StreamError::Node);
            return self.fail(why);
        }
        match done.wr_id {
            slot if slot < CONTROL && done.opcode == trunkline::WorkOpcode::Send => {
                self.free.push(slot as u16);
            }
            CONTROL => self.granting = false,
            END => self.ending = Ending::Done,
            HEARD => self.hearing = Hearing::Done,
            slot => self.receive(slot as u16, done),
        }
    }

    /// A message came.
    fn receive(&mut self, slot: u16, done: &Completion) {
        if self.failed.is_some() {
            return;
        }
        let taken = Frame::parse(done).and_then(|frame| {
            let taken = self.credits.take(frame.posted);
            taken.map_err(|_| Overgrant::WHY)?;
            match frame.kind {
                kind if !self.is_granted(kind) => {
                    Err("a message for which it was granted no receive")
                }
                Kind::Data | Kind::End if self.has_peer_ended() => Err("more after the end"),
                Kind::Data => {
                    self.unread.push(slot, done.byte_len as usize);
                    return Ok(());
                }
                Kind::End => {
                    self.hearing = Hearing::Owed;
                    Ok(())
                }
                Kind::Heard if !matches!(self.ending, Ending::Said | Ending::Done) => {
                    Err("an end was heard that was not said")
                }
                Kind::Heard => {
                    self.ending = Ending::Done;
                    Ok(())
                }
                Kind::Credit => Ok(()),
            }?;
            self.repost(slot);
            Ok(())
        });
        if let Err(what) = taken {
            self.fail(StreamError::Violation(what));
        }
    }

    /// Whether the peer was granted a receive for a message of this kind that it has just sent.
    fn is_granted(&self, kind: Kind) -> bool {
        let least = match kind {
            Kind::Data | Kind::End => Credits::RESERVE,
            Kind::Credit | Kind::Heard => 0,
        };
        matches!(self.credits.left_to_peer(self.unread.count() + 1), Some(left) if left >= least)
    }

    pub(super) fn repost(&mut self, slot: u16) {
        match post_receive(self.connection.qp(), &self.mr, slot) {
            Ok(()) => self.credits.repost(),
            Err(error) => self.fail_call(error),
        }
    }

    /// Messages that the peer has receives for.
    pub(super) const fn room(&self) -> u16 {
        self.credits.room()
    }

    /// Says what waits to be said, as far as there is room for it at the peer. The message that is
    /// being filled goes first: it may not take the last receive, and grants what there is to
    /// grant.
    pub(super) fn speak(&mut self) {
        if self.hearing == Hearing::Owed || self.credits.owes() {
            self.send_open();
        }
        if self.ending == Ending::Wanted && self.room() > Credits::RESERVE {
            self.ending = Ending::Said;
            self.say(Kind::End, END, 0);
        }
        if self.hearing == Hearing::Owed && self.room() > 0 {
            self.hearing = Hearing::Said;
            self.say(Kind::Heard, HEARD, 0);
        }
        if self.credits.owes() && self.room() > 0 && !self.granting {
            self.granting = true;
            self.say(Kind::Credit, CONTROL, 0);
        }
    }

    pub(super) fn say(&mut self, kind: Kind, wr_id: u64, bytes: usize) {
        if self.failed.is_some() {
            return;
        }
        let posted = self.credits.posted();
        let sges = [self.mr.sge(send_offset(wr_id), bytes)];
        // A peer that only reads is not woken by credits.
        let flags = match kind {
            Kind::Credit | Kind::Heard => SendFlags::SIGNALED,
            Kind::Data | Kind::End => SendFlags::SIGNALED | SendFlags::SOLICITED,
        };
        let request = SendWr {
            wr_id,
            op: SendOp::SendImm(Frame { kind, posted }.emit()),
            flags,
            sges: if bytes > 0 { &sges } else { &[] },
            inline: None,
            route: 0,
        };
        match self.connection.qp().post_send(&[request]) {
            Ok(()) => self.credits.send(),
            Err(error) => self.fail_call(error),
        }
    }

    fn fail_call(&mut self, error: Error) {
        self.fail(match error {
            Error::Down(down) => StreamError::Node(down),
            _ => StreamError::Reset,
        });
    }

    /// The stream is over. The first reason counts. Whoever waits hears it, though no completion
    /// may follow.
    fn fail(&mut self, why: StreamError) {
        if self.failed.is_none() {
            self.connection.end();
            self.failed = Some(why);
            self.waiters.wake_all();
        }
    }

    /// The node has ended, and all that it flushed was taken up.
    pub(super) fn end_with_node(&mut self) {
        self.fail(StreamError::Node(self.connection.node().down()));
    }

    /// Why nothing more goes to the peer. All that was written is with the node at its next turn.
    pub(super) fn flush(&self) -> Result<(), StreamError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Ends what is written; `None`: the peer's node does not have all of it yet.
    pub(super) fn shut_down(&mut self) -> Option<Result<(), StreamError>> {
        if self.ending == Ending::Open {
            self.ending = Ending::Wanted;
            self.send_open();
            self.speak();
        }
        let all_arrived = self.free.len() == usize::from(SENDS);
        match &self.failed {
            _ if self.ending == Ending::Done => Some(Ok(())),
            // Who is gone after its own end, with all that was written, was not waiting for this.
            Some(StreamError::Reset) if self.has_peer_ended() && all_arrived => Some(Ok(())),
            Some(why) => Some(Err(why.clone())),
            None => None,
        }
    }

    /// Returns the connection under it.
    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns what its node's tasks share.
    pub(super) fn shared(&self) -> &Shared {
        self.connection.node().shared()
    }

    /// Ends what is written, if so wished; `None`: the peer does not know all yet that it has to
    /// hear before the connection ends.
    pub(super) fn finish(&mut self, ends: bool) -> Option<()> {
        if ends {
            let _ = self.shut_down();
        }
        let ended = !ends || self.ending == Ending::Done;
        let heard = matches!(self.hearing, Hearing::Open | Hearing::Done);
        (self.failed.is_some() || ended && heard).then_some(())
    }

    /// Whether the peer has said that no more comes.
    pub(super) fn has_peer_ended(&self) -> bool {
        self.hearing != Hearing::Open
    }

    /// Asks for an event at the next completion, for a reader of messages alone, if nothing waits
    /// to be said and its connection has not ended: what comes last may ask for no event.
    pub(super) fn arm(&self, reads: bool) {
        let unsaid =
            self.ending == Ending::Wanted || self.hearing == Hearing::Owed || self.credits.owes();
        self.cq
            .arm(reads && !unsaid && !self.connection.has_ended());
    }

    /// Takes away what has completed.
    #[cfg(test)]
    pub(super) fn lose_completions(&self) {
        while self
            .cq
            .poll(&mut [Completion::BLANK; BATCH])
            .is_ok_and(|count| count > 0)
        {}
    }
}

/// Where a send buffer begins in its region.
pub(super) const fn send_offset(slot: u64) -> usize {
    (OWN.receives as usize + (slot % CONTROL) as usize) * OWN.bytes as usize
}
