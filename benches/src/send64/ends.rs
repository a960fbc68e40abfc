//! The two processes: one sends, one receives, both drive their nodes themselves.

use super::WARM_UP;
use super::end::End;
use crate::cpus::stay_on;
use crate::process::{Parent, SILENCE};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::{Node, QpAddress};

/// Arguments of a process at one end.
#[derive(Args, Clone, Debug)]
pub struct SendArgs {
    /// Which end it is.
    role: Role,
    /// Address of its node.
    address: IpAddr,
    /// The CPU that it stays on.
    #[arg(long)]
    cpu: usize,
    /// Length of a round.
    #[arg(long)]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Role {
    /// Receives.
    Server,
    /// Sends.
    Client,
}

/// One end.
///
/// # Errors
/// Whatever went wrong.
pub fn part(arguments: &SendArgs) -> Result<()> {
    stay_on(arguments.cpu)?;
    let parent = Parent::new();
    let mut end = End::open(Node::builder().address(arguments.address))?;
    let theirs: Vec<QpAddress> = parent.exchange(&end.addresses())?;
    end.connect(theirs)?;
    match arguments.role {
        Role::Server => {
            end.prepare()?;
            parent.exchange(&())?;
            serve(&mut end, &parent)
        }
        Role::Client => {
            // The receives are there then.
            parent.exchange(&())?;
            let duration = Duration::from_secs_f64(arguments.seconds);
            ask(&mut end, &parent, duration)
        }
    }
}

/// Receives until all is over, and says how many messages came.
fn serve(end: &mut End, parent: &Parent) -> Result<()> {
    let mut received = 0;
    while !parent.has_line() {
        for _ in 0..64 {
            received += end.turn()?;
            while let Some((qp, count)) = end.next_due() {
                end.receive(qp, count)?;
            }
        }
    }
    parent.say(&received)
}

/// Sends; says how many messages, and how many of them in how many seconds.
fn ask(end: &mut End, parent: &Parent, duration: Duration) -> Result<()> {
    end.fill();
    let mut moved = Instant::now();
    let (mut posted, mut done) = (0, 0);
    let (mut started, mut before) = (moved, None);
    let mut in_time = None;
    while in_time.is_none() || done < posted {
        while in_time.is_none()
            && let Some((qp, count)) = end.next_due()
        {
            end.send(qp, count)?;
            posted += count as u64;
        }
        let taken = end.turn()?;
        done += taken;
        let now = Instant::now();
        if taken > 0 {
            moved = now;
        }
        ensure!(now - moved < SILENCE, "nothing moved for {SILENCE:?}");
        let elapsed = now - started;
        match before {
            None if elapsed >= WARM_UP => (started, before) = (now, Some(done)),
            Some(before) if in_time.is_none() && done > before && elapsed >= duration => {
                in_time = Some((done - before, elapsed.as_secs_f64()));
            }
            _ => {}
        }
    }
    let (in_time, seconds) = in_time.unwrap_or_default();
    parent.say(&(done, in_time, seconds))?;
    // The last acknowledgement of this end may be under way still.
    while !parent.has_line() {
        end.node.poll()?;
    }
    Ok(())
}
