//! What a client takes up from its server.

use crate::calls::{Calls, Outcome};
use crate::error::{Refusal, RpcError};
use crate::frame::{Body, Entry, Reason};
use crate::lane::{Lane, Work};
use crate::outbox::Outbox;
use crate::transfers::{Memory, Then, Transfer, Transfers};
use std::sync::Arc;

/// Takes up an entry.
///
/// # Errors
/// No server says it.
pub(crate) fn take_up(
    calls: &mut Calls,
    entry: Entry,
    lane: &Arc<Lane>,
    transfers: &mut Transfers,
    outbox: &mut Outbox,
    work: &mut Work,
) -> Result<(), &'static str> {
    let (id, outcome) = match entry {
        Entry::Response {
            id,
            body: Body::Here(bytes),
        } => (id, Ok(Outcome::Bytes(bytes))),
        Entry::Response {
            id,
            body: Body::At(extent),
        } => {
            let awaited = calls.is_awaited(id)?;
            let region = match awaited && extent.length <= lane.options.max_body {
                true => lane.regions.take(extent.length),
                false => None,
            };
            if let Some(region) = region {
                calls.read(id)?;
                transfers.push(Transfer {
                    memory: Memory::Region(region),
                    extent,
                    then: Then::Respond { id },
                    written: None,
                });
                return Ok(());
            }
            outbox.push(&Entry::Release { id });
            (id, Err(RpcError::TooLong))
        }
        Entry::Written { id, length } => {
            if length > calls.place(id)? {
                return Err("a response is longer than its place");
            }
            (id, Ok(Outcome::Written(length)))
        }
        Entry::Refused {
            id,
            reason,
            code,
            text,
        } => {
            let message = || String::from_utf8_lossy(&text).into_owned();
            let why = match reason {
                Reason::Service => RpcError::Refused(Refusal::new(code, message())),
                Reason::Overloaded => RpcError::Overloaded,
                Reason::Deadline => RpcError::Deadline,
                Reason::Cancelled => RpcError::Cancelled,
                Reason::TooLong => RpcError::TooLong,
                Reason::Draining => RpcError::Draining,
            };
            (id, Err(why))
        }
        Entry::Request { .. } | Entry::Cancel { .. } | Entry::Release { .. } => {
            return Err("a server that asks");
        }
    };
    work.wakers.extend(calls.finish(id, outcome)?);
    Ok(())
}
