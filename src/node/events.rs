//! What happens to the objects of a node, as its program hears it.

use crate::error::Error;
use crate::node::Node;
use crate::verbs::event::Event;
use crate::worker::deadline::Deadline;
use crate::worker::sleep;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

impl Node {
    /// Returns the next asynchronous event, if there is one (`ibv_get_async_event(3)`, without
    /// blocking). Where the node's port is on an interface other than a loop, each call asks the
    /// system whether the link has changed.
    pub fn poll_event(&self) -> Option<Event> {
        let life = &self.shared.life;
        if life.is_forked() {
            return None;
        }
        if life.tell_end() {
            return Some(Event::DeviceFatal);
        }
        if let Some(client) = self.shared.client() {
            // Where the service is gone the next call says so.
            return client.poll_event();
        }
        let own = self.shared.here();
        if let Some(link) = &own.link {
            link.look();
        }
        own.events.pop()
    }

    /// Returns the next asynchronous event, and waits for it until `timeout` is over; `None`: none
    /// came. It sleeps while there is nothing to do; an inline node is driven by this call
    /// meanwhile, as by [`poll`](Self::poll).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use trunkline::{Connection, ConnectionState, Error, Node};
    /// # fn opened(node: &Node, connection: &Connection) -> Result<bool, Error> {
    /// while connection.state() == ConnectionState::Opening {
    ///     node.wait_event(Duration::from_secs(1))?;
    /// }
    /// # Ok(connection.is_open())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The node does nothing any more, and all its events were told. Of an inline node those of
    /// [`poll`](Self::poll), too. The operating system has no descriptor left.
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        match self.wait_event_until(Deadline::after(timeout)) {
            // What was told until it ended goes before that.
            Err(error) => self
                .poll_event()
                .map_or(Err(error), |event| Ok(Some(event))),
            waited => waited,
        }
    }

    fn wait_event_until(&self, end: Deadline) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.poll_event() {
                return Ok(Some(event));
            }
            self.shared.life.check()?;
            if self.is_inline() && self.poll()? {
                // The last look may have been the last one in time.
                if end.left().is_none() {
                    return Ok(self.poll_event());
                }
                continue;
            }
            let Some(left) = end.wait() else {
                return Ok(None);
            };
            sleep::wait_for(&self.shared, self.event_fd(), left)?;
        }
    }

    /// A descriptor that is readable while there are asynchronous events, and for good once the
    /// node does nothing any more: [`poll_event`](Self::poll_event) gives what is left, and no more
    /// then. Now and then it is readable for no reason. Nothing is read from it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        if let Some(client) = self.shared.client() {
            return client.event_fd();
        }
        let own = self.shared.here();
        match &own.link {
            Some(link) => link.any(),
            None => own.events.fd.as_fd(),
        }
    }
}
