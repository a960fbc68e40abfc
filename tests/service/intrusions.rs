//! Messages that no library sends, and handles of nothing.

use super::raw::{Numbers, Raw, hello, own_memory, qp_of, send_any};
use super::{is_clean, service, still_serves, until};
use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use trunkline::Access;
use trunkline::Gid;
use trunkline_host::Handle;
use trunkline_host::control::attributes::{
    MwKind, QpAttributes, QpStep, Reason, RegionPlace, RingKind,
};
use trunkline_host::control::requests as ask;
use trunkline_host::control::{Answer, MAX_MESSAGE, Request, VERSION};
use trunkline_qpmap::QpType;
use trunkline_wire::{Psn, Qpn};

#[test]
fn who_sends_no_message_is_parted_with_and_told_why() {
    let all = service(|_| {});
    let good = Request::from(ask::AllocPd {}).to_bytes(7);
    let mut numbers = Numbers(1);
    let garbage: Vec<u8> = (0..200).map(|_| numbers.next() as u8).collect();
    let longer = [good.as_slice(), &[0]].concat();
    let unknown = [&[0xff, 0x7f], &good[2..]].concat();
    let reserved = [&good[..2], &[1], &good[3..]].concat();
    let bad: Vec<Vec<u8>> = vec![
        vec![0],
        garbage,
        good[..good.len() - 1].to_vec(),
        longer,
        unknown,
        reserved,
        vec![0; MAX_MESSAGE],
        vec![0; MAX_MESSAGE + 1],
        vec![0xff; 60_000],
    ];
    for (number, message) in bad.iter().enumerate() {
        for is_attached in [false, true] {
            let mut raw = match is_attached {
                true => Raw::attach(&all.1),
                false => Raw::connect(&all.1),
            };
            raw.send_bytes(message);
            let (reason, text) = raw.end();
            assert_eq!(reason, Reason::BadMessage, "{number}: {text}");
        }
    }
    let mut raw = Raw::attach(&all.1);
    send_any(
        raw.socket(),
        &[],
        &[File::open("/dev/null").unwrap().as_fd()],
    );
    assert_eq!(raw.end().0, Reason::Asked, "no bytes are the end");
    still_serves(&all);
    assert_eq!(all.0.violations(), 2 * bad.len() as u64);
    is_clean(&all.0);
}

#[test]
fn hello_comes_first_and_once_and_in_the_language_of_the_service() {
    let all = service(|_| {});
    for version in [0, VERSION + 1, u32::MAX] {
        let mut raw = Raw::connect(&all.1);
        assert!(raw.say(hello(version)));
        assert_eq!(raw.end().0, Reason::Version);
    }
    let mut raw = Raw::connect(&all.1);
    assert!(raw.say(ask::AllocPd {}));
    assert_eq!(raw.end().0, Reason::BadMessage);
    let mut raw = Raw::attach(&all.1);
    assert!(raw.say(hello(VERSION)));
    assert_eq!(raw.end().0, Reason::BadMessage);
    // The second one comes while the descriptor of the first is judged, or after.
    for _ in 0..50 {
        let mut raw = Raw::connect(&all.1);
        let bytes = Request::from(hello(VERSION)).to_bytes(1);
        raw.send(&bytes, &[own_memory().as_fd()]);
        raw.send(&bytes, &[own_memory().as_fd()]);
        assert_eq!(raw.end().0, Reason::BadMessage);
    }
    still_serves(&all);
    is_clean(&all.0);
}

#[test]
fn descriptors_of_anything_else_than_memory_are_refused() {
    let all = service(|_| {});
    let (reader, writer) = std::io::pipe().unwrap();
    let file = std::env::temp_dir().join(format!("trunkline-hostile-{}", std::process::id()));
    let wrong: [OwnedFd; 6] = [
        reader.into(),
        writer.into(),
        File::create(&file).unwrap().into(),
        File::open("/").unwrap().into(),
        File::open("/dev/zero").unwrap().into(),
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into(),
    ];
    std::fs::remove_file(file).unwrap();
    for descriptor in &wrong {
        let mut raw = Raw::connect(&all.1);
        let bytes = Request::from(hello(VERSION)).to_bytes(9);
        raw.send(&bytes, &[descriptor.as_fd()]);
        assert_eq!(raw.end().0, Reason::BadMessage);
    }
    // Two of them, none of which is asked for, and then more than a message has.
    let mut raw = Raw::attach(&all.1);
    let bytes = Request::from(ask::AllocPd {}).to_bytes(1);
    for _ in 0..8 {
        raw.send(&bytes, &[wrong[0].as_fd(), wrong[1].as_fd()]);
        let answer = raw.hear();
        assert!(
            matches!(answer, Some((1, Answer::PdAllocated(_)))),
            "{answer:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    for count in [3, 5] {
        let mut raw = Raw::attach(&all.1);
        let many: Vec<_> = wrong[..count].iter().map(AsFd::as_fd).collect();
        send_any(raw.socket(), &bytes, &many);
        assert_eq!(raw.end().0, Reason::BadMessage);
    }
    drop(raw);
    still_serves(&all);
    is_clean(&all.0);
}

#[test]
fn who_does_not_read_is_parted_with() {
    let all = service(|_| {});
    let mut raw = Raw::attach(&all.1);
    let mut said = 0;
    while said < 1_000_000 && raw.say(ask::QueryDevice {}) {
        said += 1;
    }
    assert!(said < 1_000_000, "the service has read all");
    until("it is parted with", || all.0.violations() == 1);
    still_serves(&all);
    drop(raw);
    is_clean(&all.0);
}

/// Handles that a program has, had, or made up.
struct Handles {
    known: Vec<Handle>,
    numbers: Numbers,
}

impl Handles {
    fn any(&mut self) -> Handle {
        let numbers = &mut self.numbers;
        let serial = |number: u64| NonZeroU32::new(number as u32 | 1).unwrap();
        match numbers.below(10) {
            0 => Handle {
                index: numbers.next() as u32,
                serial: serial(numbers.next()),
            },
            1 => Handle {
                index: u32::MAX,
                serial: NonZeroU32::MAX,
            },
            2 => Handle {
                index: numbers.below(8) as u32,
                serial: serial(numbers.next() % 4),
            },
            _ => self.known[numbers.below(self.known.len())],
        }
    }

    fn maybe(&mut self) -> Option<Handle> {
        (self.numbers.below(2) == 0).then(|| self.any())
    }

    fn size(&mut self) -> u32 {
        let odd = self.numbers.next() as u32;
        [0, 1, 2, 16, 100, 1 << 15, u32::MAX, odd][self.numbers.below(8)]
    }

    fn worker(&mut self) -> Option<u8> {
        [None, Some(0), Some(1), Some(255)][self.numbers.below(4)]
    }

    fn place(&mut self) -> RegionPlace {
        match self.numbers.below(3) {
            0 => RegionPlace::Foreign {
                addr: self.numbers.next(),
            },
            _ => RegionPlace::Shared {
                memory: self.any(),
                offset: [0, 8, u64::MAX, 1 << 40][self.numbers.below(4)],
            },
        }
    }

    fn attributes(&mut self) -> QpAttributes {
        let byte = |it: &mut Self| {
            let odd = it.numbers.next() as u8;
            (it.numbers.below(2) == 0).then_some(odd)
        };
        let bits = Access::from_bits(self.numbers.next() as u32);
        QpAttributes {
            access: [None, Some(Access::ALL), Some(bits)][self.numbers.below(3)],
            qkey: Some(self.size()),
            remote: [None, Some(Gid::default())][self.numbers.below(2)],
            traffic_class: byte(self),
            flow_label: Some(self.size()),
            hop_limit: byte(self),
            service_level: byte(self),
            path_mtu: [None, Some(0), Some(1024), Some(u16::MAX)][self.numbers.below(4)],
            timeout: byte(self),
            retry_count: byte(self),
            rnr_retry: byte(self),
            rq_psn: Some(Psn::default()),
            sq_psn: Some(Psn::default()),
            max_rd_atomic: byte(self),
            max_dest_rd_atomic: byte(self),
            min_rnr_timer: byte(self),
            dest_qpn: Qpn::new(self.numbers.next() as u32 % 64),
        }
    }

    fn request(&mut self) -> Request {
        let kinds = [
            RingKind::Send,
            RingKind::Receive,
            RingKind::Shared,
            RingKind::CompletionHeader,
            RingKind::Completions,
            RingKind::Doorbells,
        ];
        let steps = [
            QpStep::Reset,
            QpStep::Init,
            QpStep::Rtr,
            QpStep::Rts,
            QpStep::Drain,
            QpStep::Resume,
            QpStep::Change,
            QpStep::Error,
        ];
        let bits = Access::from_bits(self.numbers.next() as u32);
        let access = [Access::ALL, Access::ALL.with(Access::MW_BIND), bits][self.numbers.below(3)];
        let (iova, unbind) = (self.numbers.next(), self.numbers.below(2) == 0);
        let length = [0, 1, 64, u64::MAX, 1 << 41][self.numbers.below(5)];
        let kind = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Src][self.numbers.below(4)];
        match self.numbers.below(26) {
            0 => ask::AllocPd {}.into(),
            1 => ask::DeallocPd { pd: self.any() }.into(),
            2 => ask::CreateCq {
                depth: self.size().min(1 << 16),
            }
            .into(),
            3 => ask::ResizeCq {
                cq: self.any(),
                depth: self.size().min(1 << 16),
            }
            .into(),
            4 => ask::DestroyCq { cq: self.any() }.into(),
            5 => ask::CreateSrq {
                pd: self.any(),
                max_wr: self.size(),
                max_sge: self.size(),
            }
            .into(),
            6 => ask::ModifySrq {
                srq: self.any(),
                max_wr: Some(self.size()),
                limit: Some(self.size()),
            }
            .into(),
            7 => ask::QuerySrq { srq: self.any() }.into(),
            8 => ask::DestroySrq { srq: self.any() }.into(),
            9 | 10 => ask::CreateQp {
                kind,
                max_send_wr: self.size(),
                max_send_sge: self.size() % 20,
                max_inline: self.size() % 2000,
                send_cq: self.any(),
                worker: self.worker(),
                ..qp_of(self.any(), self.any(), self.maybe())
            }
            .into(),
            11 => qp_of(self.any(), self.any(), self.maybe()).into(),
            12..=14 => ask::ModifyQp {
                qp: self.any(),
                step: steps[self.numbers.below(8)],
                attributes: self.attributes(),
            }
            .into(),
            15 => ask::QueryQp { qp: self.any() }.into(),
            16 => ask::DestroyQp { qp: self.any() }.into(),
            17 => ask::AllocMemory {
                words: self.size().min(1 << 20),
            }
            .into(),
            18 => ask::FreeMemory { memory: self.any() }.into(),
            19 => ask::RegisterMr {
                pd: self.any(),
                iova,
                length,
                access,
                place: self.place(),
            }
            .into(),
            20 => ask::ReregisterMr {
                mr: self.any(),
                pd: self.any(),
                iova,
                length,
                access,
                place: unbind.then(|| self.place()),
            }
            .into(),
            21 => ask::DeregisterMr {
                mr: self.any(),
                unbind,
            }
            .into(),
            22 => ask::AllocMw {
                pd: self.any(),
                kind: MwKind::Type2,
            }
            .into(),
            23 => ask::DeallocMw { mw: self.any() }.into(),
            24 => ask::RequestRing {
                ring: kinds[self.numbers.below(6)],
                object: self.maybe(),
                worker: self.worker().unwrap_or(0),
            }
            .into(),
            _ => match self.numbers.below(4) {
                0 => ask::WatchEvents { cq: self.maybe() }.into(),
                1 => ask::TakeEvent {}.into(),
                2 => ask::QueryPort {}.into(),
                _ => ask::CheckPeer {
                    remote: Gid::default(),
                }
                .into(),
            },
        }
    }
}

/// What an answer gives a name to.
fn named(answer: &Answer) -> Option<Handle> {
    Some(match answer {
        Answer::PdAllocated(made) => made.pd,
        Answer::CqCreated(made) => made.cq,
        Answer::SrqCreated(made) => made.srq,
        Answer::QpCreated(made) => made.qp,
        Answer::MrRegistered(made) => made.mr,
        Answer::MemoryAllocated(made) => made.memory,
        Answer::MwAllocated(made) => made.mw,
        _ => return None,
    })
}

#[test]
fn handles_of_nothing_and_of_other_kinds_are_refused_and_nothing_more() {
    let all = service(|_| {});
    for seed in 0..6 {
        let mut raw = Raw::connect(&all.1);
        let bytes = Request::from(hello(VERSION)).to_bytes(1);
        raw.send(&bytes, &[own_memory().as_fd()]);
        assert!(matches!(raw.hear(), Some((1, Answer::Welcome(_)))));
        let (pd, cq) = (raw.pd(), raw.cq(16));
        raw.ring(RingKind::Doorbells, None, 0);
        let mut handles = Handles {
            known: vec![pd, cq],
            numbers: Numbers(seed),
        };
        let (mut done, mut refused) = (0, 0);
        for _ in 0..3000 {
            let request = handles.request();
            let answer = raw.ask(request);
            assert!(
                !matches!(answer, Answer::Detached(_)),
                "{request:?}: {answer:?}"
            );
            match answer {
                Answer::Failed(_) => refused += 1,
                _ => done += 1,
            }
            handles.known.extend(named(&answer));
            raw.pieces.clear();
            raw.descriptors.clear();
        }
        assert!(
            done > 300 && refused > 300,
            "{done} done, {refused} refused"
        );
    }
    still_serves(&all);
    is_clean(&all.0);
}
