//! Tables of what each state does with everything that can happen to it.

use crate::message::Mad;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;
use trunkline_conn::time::Instant;

/// A manager with one record, and a peer whose part the test plays.
pub(crate) trait Actor: Sized {
    fn new() -> Self;
    /// Name of the state that the record is in.
    fn state(&self) -> &'static str;
    fn poll_timeout(&self) -> Option<Instant>;
    fn deliver(&mut self, mad: &Mad);
    /// Time passes up to what is due then.
    fn wait(&mut self, due: Instant);
    /// Names of the messages sent and of the events that came since it was last asked.
    fn names(&mut self) -> Vec<String>;
}

/// The peer is silent from now on: all that is due happens.
pub(crate) fn run_out(actor: &mut impl Actor) {
    while let Some(due) = actor.poll_timeout() {
        actor.wait(due);
        actor.names();
    }
}

/// The way into a state.
pub(crate) type Enter<A> = fn(&mut A);

/// Something that happens; how the call failed, if it was one and failed.
pub(crate) type Input<A> = fn(&mut A) -> Option<&'static str>;

/// The peer says something.
pub(crate) fn says<A: Actor>(actor: &mut A, mad: Mad) -> Option<&'static str> {
    actor.deliver(&mad);
    None
}

/// The call's failure, if it fails.
pub(crate) fn unknown<T, E>(result: Result<T, E>) -> Option<&'static str> {
    result.err().map(|_| "unknown")
}

/// What happens: the next state, messages sent, events, and how the call failed. A cell in which
/// nothing at all happens is empty.
fn cell<A: Actor>(enter: Enter<A>, input: Input<A>) -> String {
    let mut actor = A::new();
    enter(&mut actor);
    actor.names();
    let (before, timeout) = (actor.state(), actor.poll_timeout());
    let failed = input(&mut actor);
    let mut parts = Vec::new();
    let names = actor.names();
    if actor.state() != before {
        parts.push(actor.state().to_string());
    }
    parts.extend(names);
    parts.extend(failed.map(str::to_string));
    if parts.is_empty() && actor.poll_timeout() != timeout {
        let waits = actor
            .poll_timeout()
            .map_or("waits no longer", |_| "waits longer");
        parts.push(waits.to_string());
    }
    parts.join(" ")
}

/// Compares every cell with what is written, a line for each in which something happens.
pub(crate) fn check<A: Actor>(
    states: &[(&str, Enter<A>)],
    inputs: &[(&str, Input<A>)],
    written: &str,
) {
    let mut table = String::new();
    for (name, input) in inputs {
        for (state, enter) in states {
            let happens = cell(*enter, *input);
            if !happens.is_empty() {
                table += &format!("{state} {name}: {happens}\n");
            }
        }
    }
    let written: Vec<&str> = written.trim().lines().map(str::trim).collect();
    let found: Vec<&str> = table.trim().lines().collect();
    assert_eq!(found, written, "\n{table}");
}
