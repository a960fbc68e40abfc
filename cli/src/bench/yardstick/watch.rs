//! What both ends look at now and then.

use crate::bench::channel::{Channel, Message};
use crate::bench::failure::Ends;
use crate::bench::idle::IdleTimer;
use crate::bench::pace::{Look, Pace};
use crate::interrupt::Interrupt;
use anyhow::{Result, bail, ensure};
use std::time::{Duration, Instant};

/// Looks for the end of a measurement.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    /// To the other side.
    pub(crate) channel: Channel,
    /// Ctrl-C.
    pub(crate) interrupt: &'a Interrupt,
    /// The client has said that it is done.
    pub(crate) stopped: bool,
    ends: Ends,
    pace: Pace,
    idle_timer: IdleTimer,
}

impl<'a> Watch<'a> {
    /// Begins.
    pub(crate) fn new(
        channel: Channel,
        interrupt: &'a Interrupt,
        ends: Ends,
        timeout: Duration,
    ) -> Self {
        Self {
            channel,
            interrupt,
            stopped: false,
            ends,
            pace: Pace::new(),
            idle_timer: IdleTimer::new(timeout, Instant::now()),
        }
    }

    /// A round is over, in which there was something to do if it was `busy`; so much has `arrived`
    /// in all, in whatever unit.
    ///
    /// # Errors
    /// The other side is gone, or nothing arrives for too long, or Ctrl-C.
    #[inline]
    pub(crate) fn round(&mut self, busy: bool, arrived: u64) -> Result<()> {
        match self.pace.round(busy) {
            Some(look) => self.look_around(look, arrived),
            None => Ok(()),
        }
    }

    fn look_around(&mut self, look: Look, arrived: u64) -> Result<()> {
        self.interrupt.check()?;
        if look.was_absent {
            self.idle_timer.moved(look.now);
        }
        self.idle_timer.arrived(arrived, 1, look.now);
        ensure!(
            !self.idle_timer.is_over(look.now),
            "nothing moved for {:?}: {}",
            self.idle_timer.limit(),
            self.ends.silence()
        );
        match self.channel.poll()? {
            None => Ok(()),
            Some(Message::Stop { .. }) => {
                self.stopped = true;
                Ok(())
            }
            Some(_) => bail!("{} speaks out of turn", self.channel.peer()),
        }
    }
}
