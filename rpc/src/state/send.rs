//! How messages go out.

use super::{GRANT, Link, MESSAGE, Role, SENDS, State, cookie};
use crate::frame::Word;
use crate::lane::Lane;
use crate::lock;
use crate::outbox::Run;
use trunkline::{Error, Qp, SendWr};
use trunkline_tokio::Credits;

impl State {
    /// Sends messages as far as the peer has receives.
    ///
    /// # Errors
    /// The QP does not take them, or there is no memory.
    pub(crate) fn flush(&mut self, lane: &Lane) -> Result<(), Error> {
        while !self.outbox.is_empty()
            && self.credits.room() > Credits::RESERVE
            && self.sending < SENDS
        {
            let Link::Open(qp, _) = &self.link else {
                return Ok(());
            };
            let run = self.outbox.next(self.most(lane));
            self.post(qp, run.bytes, lane)?;
            let Run {
                entries,
                requests,
                lent,
                ..
            } = run;
            self.outbox.take(run.bytes.len());
            self.sending += 1;
            self.said();
            lane.counters.messages_sent.add(1);
            match &mut self.role {
                Role::Client(_) => lane.counters.requests_sent.add(requests.into()),
                Role::Server(served) => {
                    served.answered(entries, lent);
                    lane.counters.responses_sent.add(entries.into());
                }
            }
        }
        self.grant()
    }

    /// What every message says.
    const fn word(&self) -> u32 {
        let word = Word {
            posted: self.credits.posted(),
            drains: self.drains,
        };
        word.emit()
    }

    /// A message has said it.
    const fn said(&mut self) {
        self.drain_due = false;
        self.credits.send();
    }

    /// Posts a message. It lies in a buffer of the lane: one that has just been used, and a request
    /// that holds no bytes takes less of the QP's own memory, which is far away more often.
    fn post(&self, qp: &Qp, run: &[u8], lane: &Lane) -> Result<(), Error> {
        let mut buffers = lock(&lane.buffers);
        let buffer = buffers.take()?;
        buffers.write(buffer, run);
        let sges = [buffers.sge(buffer, run.len())];
        drop(buffers);
        let request = SendWr::send_imm(self.word()).signaled().sges(&sges);
        let posted = qp.post_send(&[request.wr_id(cookie(MESSAGE, buffer.number()))]);
        posted.inspect_err(|_| lock(&lane.buffers).give_back(buffer))
    }

    /// Tells the peer of receives, or that no more requests are taken, where no message with
    /// anything else did.
    fn grant(&mut self) -> Result<(), Error> {
        let due = self.drain_due || self.credits.owes();
        if let Link::Open(qp, _) = &self.link
            && due
            && self.credits.room() > 0
            && !self.granting
        {
            let request = SendWr::send_imm(self.word()).signaled();
            let posted = request.wr_id(cookie(GRANT, 0));
            qp.post_send(&[posted])?;
            self.granting = true;
            self.said();
        }
        Ok(())
    }
}
