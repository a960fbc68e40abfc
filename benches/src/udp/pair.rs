//! The two processes of a link.

use crate::Setting;
use crate::link::{Link, Side};
use crate::process::Process;
use anyhow::Result;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::time::Duration;

/// The two processes of a link, each told what the other said first.
#[derive(Debug)]
pub(super) struct Pair {
    server: RefCell<Process>,
    client: RefCell<Process>,
}

impl Pair {
    pub(super) fn start(
        setting: &Setting,
        link: &Link,
        task: &str,
        duration: Duration,
        rounds: usize,
    ) -> Result<Self> {
        let start = |side, role| {
            let mut command = link.command(side, &setting.program);
            command.args(["peer", role, task]);
            command.args(["--seconds", &duration.as_secs_f64().to_string()]);
            command.args(["--rounds", &rounds.to_string()]);
            if setting.counters {
                command.arg("--counters");
            }
            Process::start(command)
        };
        let mut server = start(Side::West, "server")?;
        let mut client = start(Side::East, "client")?;
        let (of_server, of_client) = (server.hear_line()?, client.hear_line()?);
        server.say_line(&of_client)?;
        client.say_line(&of_server)?;
        Ok(Self {
            server: RefCell::new(server),
            client: RefCell::new(client),
        })
    }

    /// What the client says next.
    pub(super) fn client<T: DeserializeOwned>(&self) -> Result<T> {
        self.client.borrow_mut().hear()
    }

    /// What the server says once it is told that all is over.
    pub(super) fn server<T: DeserializeOwned>(&self) -> Result<T> {
        let mut server = self.server.borrow_mut();
        server.say_line("\n")?;
        server.hear()
    }
}
