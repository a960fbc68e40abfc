use super::*;

/// A line of QPs 0 to 9, for none of which a request has begun.
fn line() -> (Line<Chain>, Chains<Undecided>) {
    let (mut line, mut links) = (Line::new(Chain::EMPTY), Chains::new());
    for qp in 0..10 {
        links.push(
            &mut line.fresh,
            Undecided {
                qp,
                requested: None,
            },
        );
    }
    (line, links)
}

/// One that comes later.
const LATE: Undecided = Undecided {
    qp: 10,
    requested: None,
};

fn qps(links: &Chains<Undecided>, chain: Chain) -> Vec<u32> {
    links.iter(chain).map(|waiter| waiter.qp).collect()
}

const UNREACHABLE: Verdict = Verdict::Unreachable(VendorError::None);
const SILENT: Verdict = Verdict::Silent(
    Instant::ZERO,
    Silence {
        died: None,
        requested: None,
    },
    VendorError::None,
);

#[test]
fn an_ask_is_for_those_that_wait_when_it_begins() {
    let (mut line, mut links) = line();
    line.connect_request_begins(Instant::ZERO, &mut links);
    links.push(&mut line.fresh, LATE);
    line.judge(UNREACHABLE, &mut links);
    assert_eq!(qps(&links, line.judged), (0..10).collect::<Vec<_>>());
    assert_eq!(qps(&links, line.fresh), [10]);
    assert!(line.requested.is_empty() && line.waits(Chain::EMPTY));
}

#[test]
fn nobody_is_judged_by_less_than_what_is_being_gone_through() {
    let (mut line, mut links) = line();
    line.connect_request_begins(Instant::ZERO, &mut links);
    line.judge(UNREACHABLE, &mut links);
    links.push(&mut line.fresh, LATE);
    line.connect_request_begins(Instant::ZERO, &mut links);
    line.judge(SILENT, &mut links);
    assert_eq!(line.verdict.strength(), UNREACHABLE.strength());
    assert_eq!(qps(&links, line.fresh), [10], "it is requested again");
    line.connect_request_begins(Instant::ZERO, &mut links);
    line.judge(Verdict::Gone, &mut links);
    assert_eq!(links.iter(line.judged).count(), 11);
    assert_eq!(line.verdict.strength(), Verdict::Gone.strength());
}

#[test]
fn who_was_to_hear_that_there_is_no_connection_waits_for_one_that_came() {
    let judged_by = |verdict| {
        let (mut line, mut links) = line();
        line.connect_request_begins(Instant::ZERO, &mut links);
        line.judge(verdict, &mut links);
        line.pardon(&mut links);
        [line.fresh, line.judged].map(|chain| links.iter(chain).count())
    };
    assert_eq!(judged_by(UNREACHABLE), [10, 0]);
    assert_eq!(judged_by(SILENT), [10, 0]);
    // What a connection to the next incarnation, or to another kind of peer, does not change.
    assert_eq!(judged_by(Verdict::Gone), [0, 10]);
    assert_eq!(judged_by(Verdict::Ibta), [0, 10]);
}

#[test]
fn who_comes_while_others_hear_that_the_peer_is_a_host_hears_it_the_next_time() {
    let (mut line, mut links) = line();
    line.judge(Verdict::Ibta, &mut links);
    links.push(&mut line.fresh, LATE);
    line.judge(Verdict::Ibta, &mut links);
    assert_eq!(qps(&links, line.judged), (0..=10).collect::<Vec<_>>());
    assert!(!line.waits(Chain::EMPTY));
}

#[test]
fn the_lines_of_a_peer_are_those_of_its_qps_and_of_its_flows() {
    let (mut waiting, mut homes) = (Waiting::default(), Homes::default());
    let (address, peer) = (Gid([7; 16]), 3);
    for (gid, at) in [(address, 5), (address, 9), (Gid([8; 16]), 11)] {
        waiting.join(
            (gid, at),
            Undecided {
                qp: 0,
                requested: None,
            },
        );
    }
    for (flow, at) in [(0, (peer, 9)), (1, (peer, 20)), (2, (peer + 1, 30))] {
        homes.begin(flow, at.0);
        waiting.strand(&mut homes, at, flow, false);
    }
    let lines = waiting.lines(address, peer).collect::<Vec<_>>();
    assert_eq!(lines, [5, 9, 9, 20]);
}

#[test]
fn one_leaves_its_line_wherever_it_stands() {
    let (mut line, mut links) = line();
    line.connect_request_begins(Instant::ZERO, &mut links);
    links.push(
        &mut line.fresh,
        Undecided {
            qp: 10,
            requested: None,
        },
    );
    // Links are numbers of a slab, from 0.
    for link in (0..11).rev() {
        let left = links.remove_from(line.lists(), link);
        assert_eq!(left.qp, link);
    }
    assert!(line.is_empty(Chain::EMPTY));
}

#[test]
fn the_lines_of_a_peer_tell_its_workers_apart_however_many_it_has() {
    for count in 1..=Workers::MOST {
        let workers = Workers::new(count).expect("so many there may be");
        for number in 0..4096 {
            let remote = Qpn::from_wire(number);
            let of_line = workers.owner(number_of(line_of(remote)).get());
            assert_eq!(of_line, workers.owner(number));
        }
    }
}

#[test]
fn a_silence_lasts_from_the_first_ask_until_a_connection_stands() {
    let (mut silences, here) = (Silences::default(), (1, 0));
    let at = Instant::from_nanos;
    silences.begin(here, Some(at(3)));
    silences.connect_request_begins(here, at(5));
    // Connections that end meanwhile: one of a program, and one that was heard later.
    silences.begin(here, None);
    silences.begin(here, Some(at(4)));
    silences.connect_request_begins(here, at(9));
    let silence = silences.of(here).expect("nothing leads there");
    assert_eq!(
        (silence.died, silence.requested),
        (Some(at(4)), Some(at(5)))
    );
    silences.end(here);
    assert!(silences.of(here).is_none());
}

#[test]
fn what_is_forgotten_of_a_peer_is_all_of_it_and_nothing_of_others() {
    let mut silences = Silences::default();
    for worker in [(1, 255), (2, 0), (2, 7), (2, 255), (3, 0)] {
        silences.begin(worker, Some(Instant::ZERO));
    }
    silences.forget(2);
    let left = [(1, 255), (2, 0), (2, 7), (2, 255), (3, 0)].map(|at| silences.of(at).is_some());
    assert_eq!(left, [true, false, false, false, true]);
}
