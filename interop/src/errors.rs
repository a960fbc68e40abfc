//! What goes wrong on purpose: receivers that are not ready, requests that are refused, peers that
//! do not answer.

use crate::pair::{Pair, Place, Terms, Way};
use crate::station::{Op, PATIENCE, Post, Station};
use crate::suite::Case;
use anyhow::{Result, ensure};
use std::time::Duration;
use trunkline::{QpState, QpType, Remote, Rkey, SendFlags, Status};

const RECEIVE: u64 = 100;

/// All of this file.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for way in Way::BOTH {
        let mut add = |name: &str, run: fn(Place, Way) -> Result<()>| {
            let name = format!("rc/{name}/{}", way.word());
            cases.push(Case::new(name, move |place| run(place, way)));
        };
        add("rnr-then-ready", rnr_then_ready);
        add("rnr-for-good", rnr_for_good);
        add("bad-rkey-write", |p, w| refused(p, w, Op::Write, bad_key));
        add("bad-rkey-read", |p, w| refused(p, w, Op::Read, bad_key));
        add("bad-rkey-atomic", |p, w| {
            refused(p, w, Op::FetchAdd { add: 1 }, bad_key)
        });
        add("beyond-region-write", |p, w| {
            refused(p, w, Op::Write, beyond)
        });
        add("beyond-region-read", |p, w| refused(p, w, Op::Read, beyond));
        add("send-too-long", too_long);
        add("silent-peer", silent_peer);
    }
    // libibverbs of the guest posts no such request.
    let name = format!("rc/misaligned-atomic/{}", Way::Us.word());
    cases.push(Case::new(name, |place| misaligned(place, Way::Us)));
    cases
}

fn open(place: Place, rnr_retry: u8) -> Result<Pair> {
    let terms = Terms {
        rnr_retry,
        ..Terms::new(QpType::Rc, 1024, 1 << 16)
    };
    Pair::open(place, &terms)
}

const fn post(op: Op, remote: Remote) -> Post {
    Post {
        wr_id: 1,
        op,
        offset: 0,
        length: 8,
        remote,
        flags: SendFlags(0),
    }
}

fn bad_key(to: &dyn Station) -> Remote {
    let remote = to.remote(0);
    let rkey = Rkey(remote.rkey.0 ^ 0x0055_5500);
    Remote { rkey, ..remote }
}

fn beyond(to: &dyn Station) -> Remote {
    // The last bytes of the buffer and one more.
    to.remote(to.size() + crate::station::MARGIN - 7)
}

/// A message waits until there is a receive for it.
fn rnr_then_ready(place: Place, way: Way) -> Result<()> {
    let mut pair = open(place, 7)?;
    let (from, to) = pair.sides(way);
    from.fill(0, 3000, 5)?;
    from.post(&Post {
        length: 3000,
        ..post(Op::Send, to.remote(0))
    })?;
    from.silent()?;
    to.recv(RECEIVE, 8192, 3000)?;
    to.next()?.is(RECEIVE, Status::Success)?;
    from.next()?.is(1, Status::Success)?;
    to.check(8192, 3000, 5)
}

/// A receiver that stays unready ends a QP that does not wait for ever.
fn rnr_for_good(place: Place, way: Way) -> Result<()> {
    let mut pair = open(place, 2)?;
    let (from, to) = pair.sides(way);
    from.post(&post(Op::Send, to.remote(0)))?;
    from.next()?.is(1, Status::RnrRetryExceeded)?;
    ended(&mut pair, way)
}

/// The QP that was refused is in error.
fn ended(pair: &mut Pair, way: Way) -> Result<()> {
    pair.settle();
    match way {
        Way::Us => ensure!(pair.ours.qp.state() == QpState::Error, "ours lives on"),
        Way::Guest => {
            let state = pair.guests.state()?;
            ensure!(state == QpState::Error as u32, "the guest's is in {state}");
        }
    }
    Ok(())
}

/// A request for memory that the peer does not give.
fn refused(place: Place, way: Way, op: Op, remote: fn(&dyn Station) -> Remote) -> Result<()> {
    let mut pair = open(place, 7)?;
    let (from, to) = pair.sides(way);
    to.put(0, 77)?;
    from.put(0, 78)?;
    from.post(&post(op, remote(to)))?;
    from.next()?.is(1, Status::RemoteAccess)?;
    ensure!(to.get(0)? == 77, "the target was changed");
    ensure!(from.get(0)? == 78, "the answer was placed");
    // A second one finds the QP in error.
    from.post(&Post {
        wr_id: 2,
        ..post(op, to.remote(0))
    })?;
    from.next()?.is(2, Status::Flushed)?;
    ended(&mut pair, way)
}

fn misaligned(place: Place, way: Way) -> Result<()> {
    let mut pair = open(place, 7)?;
    let (from, to) = pair.sides(way);
    from.post(&post(Op::FetchAdd { add: 1 }, to.remote(4)))?;
    from.next()?.is(1, Status::RemoteInvalidRequest)?;
    ended(&mut pair, way)
}

/// A SEND that does not fit its receive ends both QPs. Soft-RoCE of Linux 6.1 takes the fault for
/// its own, where IBTA has the request invalid.
fn too_long(place: Place, way: Way) -> Result<()> {
    let mut pair = open(place, 7)?;
    let (from, to) = pair.sides(way);
    to.recv(RECEIVE, 8192, 10)?;
    from.post(&Post {
        length: 11,
        ..post(Op::Send, to.remote(0))
    })?;
    let (asker, asked) = match way {
        Way::Us => (Status::RemoteOperation, Status::LocalQpOperation),
        Way::Guest => (Status::RemoteInvalidRequest, Status::LocalLength),
    };
    from.next()?.is(1, asker)?;
    to.next()?.is(RECEIVE, asked)?;
    ended(&mut pair, way)
}

/// A peer whose QP is gone does not answer.
fn silent_peer(place: Place, way: Way) -> Result<()> {
    let terms = Terms {
        retry_count: 1,
        timeout: 14,
        ..Terms::new(QpType::Rc, 1024, 1 << 16)
    };
    let Pair {
        mut ours,
        mut guests,
        node,
    } = Pair::open(place, &terms)?;
    let remote = Remote::default();
    let done = match way {
        Way::Us => {
            drop(guests);
            ours.post(&post(Op::Write, remote))?;
            ours.wait(PATIENCE)?
        }
        Way::Guest => {
            drop((ours, node));
            guests.post(&post(Op::Write, remote))?;
            guests.wait(Duration::from_secs(20))?
        }
    };
    let done = done.ok_or_else(|| anyhow::anyhow!("no completion"))?;
    done.is(1, Status::RetryExceeded)
}
