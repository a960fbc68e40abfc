//! Connections that do not come about, and what is said with those that do.

use super::end::{End, params};
use crate::pair::Place;
use crate::station::PATIENCE;
use anyhow::{Result, bail, ensure};
use std::time::{Duration, Instant};
use trunkline::rdma_cm::{CmEventKind, Data, Kind, Params, PortSpace, RejReason};

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 7900;
/// Bytes of private data with each message.
const LENGTH: usize = 56;

/// What begins with `letter`, and the answer to it.
fn words(letter: u8) -> (Vec<u8>, Vec<u8>) {
    let asked: Vec<u8> = (0..LENGTH as u8).map(|at| letter + at).collect();
    let answer = asked.iter().map(|byte| !byte).collect();
    (asked, answer)
}

/// Nobody listens in the guest.
pub(super) fn nobody_in_guest(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let id = end.resolved(PortSpace::Tcp, Kind::Rc, PORT)?;
    end.qp(&id)?;
    id.connect(&params())?;
    match end.event()?.kind {
        CmEventKind::Rejected { reason, .. } => {
            ensure!(reason == RejReason::InvalidServiceId, "{reason:?}");
            Ok(())
        }
        other => bail!("{other:?}"),
    }
}

/// Runs the guest's peer against us; gives what it printed.
fn asked_by_guest(
    place: Place,
    letter: char,
    serve: impl FnOnce() -> Result<()>,
) -> Result<String> {
    let line = format!("cm_peer ask {} {PORT} {letter}", place.address);
    let client = place.guest.start(&line, LIMIT);
    let served = serve();
    let printed = client.finish()?;
    served?;
    Ok(printed)
}

/// Nobody listens here.
pub(super) fn nobody_here(place: Place) -> Result<()> {
    let _end = End::new(place)?;
    let printed = asked_by_guest(place, 'a', || Ok(()))?;
    ensure!(
        printed.starts_with("RDMA_CM_EVENT_REJECTED 8 "),
        "{printed}"
    );
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn requested(end: &End, letter: u8) -> Result<trunkline::rdma_cm::CmId> {
    let event = end.event()?;
    let CmEventKind::ConnectRequest { data, .. } = &event.kind else {
        bail!("{:?}", event.kind);
    };
    ensure!(data[..LENGTH] == words(letter).0, "{data:?}");
    Ok(event.id)
}

/// We refuse, with a reason of our own.
pub(super) fn reject_guest(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let _listener = end.listen(PortSpace::Tcp, Kind::Rc, PORT)?;
    let answer = words(b'R').1;
    let printed = asked_by_guest(place, 'R', || Ok(requested(&end, b'R')?.reject(&answer)?))?;
    let expected = format!("RDMA_CM_EVENT_REJECTED 28 {}", hex(&answer));
    ensure!(printed.starts_with(&expected), "{printed}");
    Ok(())
}

/// Connects to the guest's peer with private data; gives the outcome.
fn ask_guest(end: &End, letter: u8) -> Result<CmEventKind> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let id = end.resolved(PortSpace::Tcp, Kind::Rc, PORT)?;
        end.qp(&id)?;
        id.connect(&Params {
            private_data: &words(letter).0,
            ..params()
        })?;
        let kind = end.event()?.kind;
        let early = matches!(&kind, CmEventKind::Rejected { reason, .. }
            if *reason == RejReason::InvalidServiceId);
        if early && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        if let CmEventKind::Established { .. } = kind {
            id.disconnect()?;
            end.disconnected()?;
        }
        return Ok(kind);
    }
}

/// Private data of every message, in both directions.
pub(super) fn private_data(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let line = format!("cm_peer serve {} {PORT} 2", place.guest.address);
    let server = place.guest.start(&line, LIMIT);
    let complement = |letter: u8, data: &Data| data[..LENGTH] == words(letter).1;
    match ask_guest(&end, b'a')? {
        CmEventKind::Established { data, .. } => ensure!(complement(b'a', &data), "{data:?}"),
        other => bail!("{other:?}"),
    }
    match ask_guest(&end, b'R')? {
        CmEventKind::Rejected { reason, data } => {
            ensure!(reason == RejReason::ConsumerDefined, "{reason:?}");
            ensure!(complement(b'R', &data), "{data:?}");
        }
        other => bail!("{other:?}"),
    }
    server.finish()?;

    let _listener = end.listen(PortSpace::Tcp, Kind::Rc, PORT)?;
    let answer = words(b'b').1;
    let printed = asked_by_guest(place, 'b', || {
        let id = requested(&end, b'b')?;
        end.qp(&id)?;
        id.accept(&Params {
            private_data: &answer,
            ..params()
        })?;
        end.established()?;
        end.disconnected().map(drop)
    })?;
    let expected = format!("RDMA_CM_EVENT_ESTABLISHED 0 {}", hex(&answer));
    ensure!(printed.starts_with(&expected), "{printed}");
    Ok(())
}
