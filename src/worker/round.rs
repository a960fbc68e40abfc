//! One round of a worker. Its port is taken for all of it, and its core only in between: no call of
//! a program waits for a system call.

use crate::error::Error;
use crate::worker::core::{Core, PortBox};
use crate::worker::handle::WorkerHandle;
use std::sync::MutexGuard;
use trunkline_dataplane::PortEvent;

impl WorkerHandle {
    /// Packets in, timers, new work, packets out, completions. Gives whether anything happened.
    ///
    /// What was posted since the last round goes out before the port is asked for more: asking
    /// costs a system call where the port is the kernel's. Where there was nothing to do before it
    /// and nothing came, the round is over: who polls for packets gets them the sooner the less a
    /// round in vain takes.
    ///
    /// # Errors
    /// The port does not work, or not just now; the node is down.
    pub(crate) fn round(&self) -> Result<bool, Error> {
        self.look_for_programs()?;
        let mut port = self.port_for_worker()?;
        let before = self.send_posted(&mut port)?;
        let fetched = port.fetch()?;
        let mut core = self.core_for_worker()?;
        // Whoever gets packets need not know whether there was something else to do.
        if before.is_none() && !fetched && core.is_idle(&**port) {
            core.catch_up();
            drop(core);
            port.flush()?;
            self.heed(&mut port)?;
            return Ok(false);
        }
        let worked = core.work(&mut **port, fetched, &self.new_qps)?;
        self.send(&mut port, core)?;
        if let Some(capture) = &self.capture {
            capture.flush();
        }
        Ok(before == Some(true) || worked)
    }

    /// What was posted leaves. Gives whether that was anything; `None`: nothing was to be done.
    fn send_posted(&self, port: &mut PortBox) -> Result<Option<bool>, Error> {
        let mut core = self.core_for_worker()?;
        let sent = core.send_posted(&mut **port);
        if sent.is_some() {
            self.send(port, core)?;
        }
        Ok(sent)
    }

    /// What is in the port leaves, and what it has to say is heard. Completions can be polled
    /// before that, and who waits for them is woken without the core.
    fn send(&self, port: &mut PortBox, mut core: MutexGuard<'_, Core>) -> Result<(), Error> {
        let notifications = core.engine.publish();
        drop(core);
        port.flush()?;
        drop(notifications);
        self.heed(port)
    }

    /// Takes up what the port says of datagrams that were sent.
    #[inline]
    fn heed(&self, port: &mut PortBox) -> Result<(), Error> {
        match port.poll_event() {
            Some(event) => self.heed_events(event, port),
            None => Ok(()),
        }
    }

    #[cold]
    fn heed_events(&self, first: PortEvent, port: &mut PortBox) -> Result<(), Error> {
        let mut core = self.core_for_worker()?;
        core.heed(first);
        while let Some(event) = port.poll_event() {
            core.heed(event);
        }
        let notifications = core.engine.publish();
        drop(core);
        drop(notifications);
        Ok(())
    }
}
