//! The programs. What each of them does on the connection is told at its counterpart.

use super::end::End;
use crate::pair::Place;
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use trunkline::rdma_cm::{CmEventKind, Kind, PortSpace};
use trunkline::{AhAttributes, Completion, Extra, GRH_LEN, Qp, Remote, Rkey, SendOp};

/// How long a program of the guest may run.
pub(super) const LIMIT: Duration = Duration::from_secs(100);
pub(super) const RC: (PortSpace, Kind) = (PortSpace::Tcp, Kind::Rc);
const UD: (PortSpace, Kind) = (PortSpace::Udp, Kind::Ud);
const PING_PORT: u16 = 7174;
pub(super) const OTHER_PORT: u16 = 7471;
const UD_PORT: u16 = 7174;
const ROUNDS: usize = 20;
/// Bytes of a ping, and where its halves lie: what is read, what is written.
const PING: usize = 500;
const READ_AT: usize = 4096;
const WRITTEN_AT: usize = 8192;
/// Where descriptions come in, and where ours go out from.
const INFO_IN: usize = 0;
const INFO_OUT: usize = 256;
/// Address, key and size, big-endian.
const INFO: usize = 16;
/// Messages of ucmatose and udaddy, and their bytes.
pub(super) const MESSAGES: usize = 10;
pub(super) const MESSAGE: usize = 100;
/// Room of a message at our end.
pub(super) const SLOT: usize = 256;
/// Where messages go out from.
const OUT: usize = 1 << 16;
/// Connections of cmtime.
const CONNECTIONS: usize = 100;

fn address(place: Place) -> std::net::IpAddr {
    place.guest.address
}

fn to(place: Place) -> AhAttributes {
    AhAttributes {
        remote: address(place).into(),
        ..AhAttributes::default()
    }
}

/// Describes a part of our buffer to rping: where it may read or write.
fn tell(end: &End, qp: &Qp, offset: usize) -> Result<()> {
    let remote = end.mr.remote(offset);
    let mut info = [0; INFO];
    info[..8].copy_from_slice(&remote.addr.to_be_bytes());
    info[8..12].copy_from_slice(&remote.rkey.0.to_be_bytes());
    info[12..].copy_from_slice(&(PING as u32).to_be_bytes());
    end.mr.write(INFO_OUT, &info)?;
    end.receive(qp, 1, INFO_IN, INFO)?;
    end.post(qp, SendOp::Send, INFO_OUT, INFO)?;
    end.done().map(drop)
}

/// What rping told us.
fn told(end: &End) -> Result<(Remote, usize)> {
    let mut info = [0; INFO];
    end.mr.read(INFO_IN, &mut info)?;
    let [addr @ .., _, _, _, _, _, _, _, _] = info;
    let word = |at: usize| [info[at], info[at + 1], info[at + 2], info[at + 3]];
    let remote = Remote {
        addr: u64::from_be_bytes(addr),
        rkey: Rkey(u32::from_be_bytes(word(8))),
    };
    Ok((remote, u32::from_be_bytes(word(12)) as usize))
}

/// The client of rping: each round the server reads one part of our buffer, says so, and writes
/// what it read into another part.
pub(super) fn ping_guest(place: Place) -> Result<()> {
    let line = format!("rping -s -a {} -C {ROUNDS} -S {PING}", address(place));
    let server = place.guest.start(&line, LIMIT);
    let end = End::new(place)?;
    let (id, _) = end.connect((RC.0, RC.1, PING_PORT), |_| Ok(()))?;
    let qp = id.qp().context("a QP of its own")?;
    for round in 0..ROUNDS {
        // The server takes it for a string, and writes that much.
        let mut data: Vec<u8> = (0..PING).map(|at| (at + round) as u8 | 1).collect();
        data[PING - 1] = 0;
        end.mr.write(READ_AT, &data)?;
        tell(&end, &qp, READ_AT)?;
        end.done()?;
        tell(&end, &qp, WRITTEN_AT)?;
        end.done()?;
        let mut back = vec![0; PING];
        end.mr.read(WRITTEN_AT, &mut back)?;
        ensure!(back == data, "round {round}");
        end.mr.write(WRITTEN_AT, &[1; PING])?;
    }
    id.disconnect()?;
    end.disconnected()?;
    // It calls the client's farewell an error, if it was not done itself.
    server.status().map(drop)
}

/// The server of rping.
pub(super) fn pinged_by_guest(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let _listener = end.listen(RC.0, RC.1, PING_PORT)?;
    let line = format!("rping -c -a {} -C {ROUNDS} -S {PING} -V", place.address);
    let client = place.guest.start(&line, LIMIT);
    let id = end.accept(|qp| end.receive(qp, 1, INFO_IN, INFO))?;
    end.established()?;
    let qp = id.qp().context("a QP of its own")?;
    for _ in 0..ROUNDS {
        end.done()?;
        let (source, length) = told(&end)?;
        ensure!(length == PING, "{length} bytes announced");
        end.post(&qp, SendOp::Read(source), READ_AT, PING)?;
        end.done()?;
        end.receive(&qp, 1, INFO_IN, INFO)?;
        end.post(&qp, SendOp::Send, INFO_OUT, INFO)?;
        end.all_done(2)?;
        let (sink, _) = told(&end)?;
        end.post(&qp, SendOp::Write(sink), READ_AT, PING)?;
        end.done()?;
        end.receive(&qp, 1, INFO_IN, INFO)?;
        end.post(&qp, SendOp::Send, INFO_OUT, INFO)?;
        end.done()?;
    }
    end.disconnected()?;
    client.finish().map(drop)
}

pub(super) fn receives(end: &End, qp: &Qp, length: usize) -> Result<()> {
    (0..MESSAGES).try_for_each(|at| end.receive(qp, 1 + at as u64, SLOT * at, length))
}

pub(super) fn sends(end: &End, qp: &Qp, op: SendOp) -> Result<()> {
    (0..MESSAGES).try_for_each(|_| end.post(qp, op, OUT, MESSAGE))?;
    Ok(())
}

/// The client of ucmatose: the server sends all its messages, then we do, then it disconnects.
pub(super) fn send_to_guest(place: Place) -> Result<()> {
    let line = format!("ucmatose -b {} -C {MESSAGES} -S {MESSAGE}", address(place));
    let server = place.guest.start(&line, LIMIT);
    let end = End::new(place)?;
    let prepare = |qp: &Qp| receives(&end, qp, SLOT);
    let (id, _) = end.connect((RC.0, RC.1, OTHER_PORT), prepare)?;
    let qp = id.qp().context("a QP of its own")?;
    for done in end.all_done(MESSAGES)? {
        ensure!(done.byte_len as usize == MESSAGE, "{done:?}");
    }
    sends(&end, &qp, SendOp::Send)?;
    end.all_done(MESSAGES)?;
    end.disconnected()?;
    server.finish().map(drop)
}

/// The server of ucmatose.
pub(super) fn sent_by_guest(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let _listener = end.listen(RC.0, RC.1, OTHER_PORT)?;
    let line = format!("ucmatose -s {} -C {MESSAGES} -S {MESSAGE}", place.address);
    let client = place.guest.start(&line, LIMIT);
    let id = end.accept(|qp| receives(&end, qp, SLOT))?;
    end.established()?;
    let qp = id.qp().context("a QP of its own")?;
    sends(&end, &qp, SendOp::Send)?;
    end.all_done(2 * MESSAGES)?;
    id.disconnect()?;
    end.disconnected()?;
    client.finish().map(drop)
}

/// The client of udaddy: messages carry the sender's QP as immediate data, and come back.
pub(super) fn datagrams_to_guest(place: Place) -> Result<()> {
    let line = format!("udaddy -b {} -C {MESSAGES} -S {MESSAGE}", address(place));
    let server = place.guest.start(&line, LIMIT);
    let end = End::new(place)?;
    let prepare = |qp: &Qp| receives(&end, qp, SLOT);
    let (id, established) = end.connect((UD.0, UD.1, UD_PORT), prepare)?;
    let CmEventKind::Established { ud: Some(peer), .. } = established else {
        anyhow::bail!("{established:?}");
    };
    let qp = id.qp().context("a QP of its own")?;
    let ah = end.pd.create_ah(&to(place))?;
    sends(&end, &qp, ah.send_imm(peer.qpn, peer.qkey, qp.qpn().get()))?;
    let back = |done: &&Completion| done.byte_len as usize == MESSAGE + GRH_LEN;
    let done = end.all_done(2 * MESSAGES)?;
    ensure!(done.iter().filter(back).count() == MESSAGES, "{done:?}");
    server.finish().map(drop)
}

/// The server of udaddy.
pub(super) fn datagrams_of_guest(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let _listener = end.listen(UD.0, UD.1, UD_PORT)?;
    let line = format!("udaddy -s {} -C {MESSAGES} -S {MESSAGE}", place.address);
    let client = place.guest.start(&line, LIMIT);
    let id = end.accept(|qp| receives(&end, qp, SLOT))?;
    let qp = id.qp().context("a QP of its own")?;
    let done = end.all_done(MESSAGES)?;
    let first = done.first().context("no message")?;
    ensure!(
        first.extra == Extra::Immediate(first.src_qp.get()),
        "{first:?}"
    );
    let ah = end.pd.create_ah(&to(place))?;
    let qkey = trunkline::rdma_cm::Params::UDP_QKEY;
    sends(&end, &qp, ah.send_imm(first.src_qp, qkey, qp.qpn().get()))?;
    end.all_done(MESSAGES)?;
    client.finish().map(drop)
}

/// The client of cmtime: connections that come and go.
pub(super) fn connect_often(place: Place) -> Result<()> {
    let line = format!("cmtime -b {} -c {CONNECTIONS}", address(place));
    let server = place.guest.start(&line, LIMIT);
    let end = End::new(place)?;
    let mut ids = Vec::new();
    for _ in 0..CONNECTIONS {
        let (id, _) = end.connect((RC.0, RC.1, OTHER_PORT), |_| Ok(()))?;
        ids.push(id);
    }
    ids.iter().try_for_each(|id| id.disconnect())?;
    for _ in 0..CONNECTIONS {
        end.disconnected()?;
    }
    drop(ids);
    // It serves until it is told to stop.
    place.guest.run("killall cmtime", LIMIT)?;
    server.status().map(drop)
}

/// The server of cmtime.
pub(super) fn connected_often(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let _listener = end.listen(RC.0, RC.1, OTHER_PORT)?;
    let line = format!("cmtime -s {} -c {CONNECTIONS}", place.address);
    let client = place.guest.start(&line, LIMIT);
    let mut ids = Vec::new();
    let (mut begun, mut ended) = (0, 0);
    while ended < CONNECTIONS {
        let event = end.event()?;
        match event.kind {
            CmEventKind::ConnectRequest { .. } => {
                end.qp(&event.id)?;
                event.id.accept(&super::end::params())?;
                ids.push(event.id);
            }
            CmEventKind::Established { .. } => begun += 1,
            CmEventKind::Disconnected { .. } => ended += 1,
            CmEventKind::TimewaitExit => {}
            other => anyhow::bail!("{other:?}"),
        }
    }
    ensure!(begun == CONNECTIONS, "{begun} connections stood");
    client.finish().map(drop)
}
