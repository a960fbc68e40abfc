//! The engine alone: two of them on a memory pair, one thread driving both ends.

use crate::Measurement;
use crate::pair::{Ends, PairConfig};
use std::time::{Duration, Instant};
use trunkline_conn::mem::Bytes;
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status};
use trunkline_dataplane::Region;
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_wire::Crc;

/// SENDs of 64 bytes on `active` of `qps` QPs, all on one connection, each with a completion at both
/// ends: messages per second.
pub fn send64(qps: usize, active: usize, duration: Duration) -> f64 {
    const SIZE: u32 = 64;
    const DEPTH: u64 = 8;
    let mut ends = Ends::new(&PairConfig { qps, ..PairConfig::default() });
    let (tx, rx) = (ends.nodes[0].sge(0, SIZE), ends.nodes[1].sge(0, SIZE));
    let receive = RecvWr { wr_id: 1, sges: &[rx] };
    let request = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        sges: &[tx],
        inline: None,
        route: 0,
    };
    let receives = [receive; DEPTH as usize];
    let requests = [request; DEPTH as usize];
    let mut done = [Completion::BLANK; 256];
    let mut outstanding = vec![0u64; active];
    let index: std::collections::BTreeMap<u32, usize> =
        (0..active).map(|i| (ends.qps[i][0].index, i)).collect();
    let _ = index;
    let started = Instant::now();
    let (mut count, mut at) = (0u64, 0usize);
    let mut budget = 4096u64;
    let mut sent = 0u64;
    loop {
        // QPs take turns, each with a batch; as many are under way as the queues hold.
        let mut posted = 0;
        while posted < 16 && budget >= DEPTH {
            let qp = at % active;
            at += 1;
            posted += 1;
            if outstanding[qp] >= DEPTH {
                break;
            }
            ends.post_recv(1, qp, &receives);
            ends.post_send(0, qp, &requests);
            outstanding[qp] += DEPTH;
            budget -= DEPTH;
        }
        ends.turn();
        loop {
            let got = ends.nodes[0].cq.poll(&mut done);
            for completion in &done[..got] {
                assert_eq!(completion.status, Status::Success, "a SEND failed");
                let qp = ends.index_of(completion.qpn);
                outstanding[qp] -= 1;
            }
            budget += got as u64;
            sent += got as u64;
            if got < done.len() {
                break;
            }
        }
        loop {
            let got = ends.nodes[1].cq.poll(&mut done);
            count += got as u64;
            if got < done.len() {
                break;
            }
        }
        if started.elapsed() >= duration {
            assert!(sent > 0 && count > 0, "nothing moved");
            return sent.min(count) as f64 / started.elapsed().as_secs_f64();
        }
    }
}

/// WRITEs of 1 MiB, going round a buffer of `span` bytes at each end: bytes per second.
pub fn write1m(span: usize, duration: Duration) -> f64 {
    const SIZE: usize = 1 << 20;
    let config = PairConfig { qps: 1, bytes: span.max(SIZE), ..PairConfig::default() };
    let mut ends = Ends::new(&config);
    let message = SIZE.min(span);
    let remote = |ends: &Ends, offset: usize| Remote {
        addr: ends.nodes[1].region.addr() + offset as u64,
        rkey: ends.nodes[1].key,
    };
    let mut done = [Completion::BLANK; 16];
    let (mut under_way, mut bytes, mut offset) = (0, 0u64, 0);
    let started = Instant::now();
    loop {
        while under_way < 4 {
            let op = SendOp::Write(remote(&ends, offset));
            let sges = [ends.nodes[0].sge_at(offset, message as u32)];
            let flags = SendFlags::SIGNALED;
            let request = SendWr { wr_id: 0, op, flags, sges: &sges, inline: None, route: 0 };
            ends.post_send(0, 0, &[request]);
            under_way += 1;
            offset = (offset + message) % span;
        }
        ends.turn();
        let got = ends.nodes[0].cq.poll(&mut done);
        for completion in &done[..got] {
            assert_eq!(completion.status, Status::Success, "a WRITE failed");
        }
        under_way -= got;
        bytes += (got * message) as u64;
        if started.elapsed() >= duration {
            return bytes as f64 / started.elapsed().as_secs_f64();
        }
    }
}

/// The yardstick of [`write1m`]: each byte copied and summed once per end, over the same buffers, by
/// the same kernel, with nothing else: bytes per second.
pub fn copy_twice(span: usize, duration: Duration) -> f64 {
    const FRAME: usize = 4096;
    let source = Region::allocate(span).expect("memory");
    let target = Region::allocate(span).expect("memory");
    let mut frames = vec![[0u8; FRAME]; 64];
    let (mut bytes, mut offset) = (0u64, 0);
    let started = Instant::now();
    loop {
        for frame in &mut frames {
            let mut crc = Crc::new();
            source.copy_out(offset, frame, Some(&mut crc));
            let mut check = Crc::new();
            target.copy_in(offset, frame, Some(&mut check));
            assert_eq!(crc, check, "the same bytes");
            offset = (offset + FRAME) % span;
        }
        bytes += (frames.len() * FRAME) as u64;
        if started.elapsed() >= duration {
            return bytes as f64 / started.elapsed().as_secs_f64();
        }
    }
}

/// Runs `a` and `b` by turns and gives the medians.
pub fn alternate(
    rounds: usize,
    mut a: impl FnMut() -> f64,
    mut b: impl FnMut() -> f64,
) -> (f64, f64) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        first.push(a());
        second.push(b());
    }
    (median(first), median(second))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `engine_send64`: the yardstick is a bare copy-and-sum of as many bytes.
pub fn engine_send64(duration: Duration) -> Measurement {
    let value = median((0..5).map(|_| send64(1000, 1000, duration)).collect());
    Measurement::new("engine_send64", value, "messages/s", "goal of 5 million", 5e6)
}

/// `engine_write1m_l2` and `engine_write1m_64m`.
pub fn engine_write1m(name: &'static str, span: usize, duration: Duration) -> Measurement {
    let (value, yardstick) =
        alternate(5, || write1m(span, duration), || copy_twice(span, duration));
    Measurement::new(name, value, "bytes/s", "copy and CRC once per end", yardstick)
}
