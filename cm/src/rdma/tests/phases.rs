//! What those see who only watch.

use super::{Cable, params};
use crate::Phase;
use crate::rdma::{IdPhase, Kind, PortSpace};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

type Seen<T> = Arc<Mutex<Vec<T>>>;

/// Notes what comes, and gives it out.
fn notebook<T: Send + 'static>() -> (Seen<T>, impl FnMut(T) + Send) {
    let seen = Seen::default();
    let notes = Arc::clone(&seen);
    let note = move |what| notes.lock().expect("nobody panics here").push(what);
    (seen, note)
}

fn take<T>(seen: &Seen<T>) -> Vec<T> {
    core::mem::take(&mut *seen.lock().expect("nobody panics here"))
}

#[test]
fn a_watcher_sees_every_phase_of_a_connection_at_both_ends() {
    let mut cable = Cable::new();
    let (asking, mut note) = notebook();
    cable.hosts[0].observe_ib(move |step| note((step.from, step.to, step.peer)));
    let (asked, mut note) = notebook();
    cable.hosts[1].observe_ib(move |step| note((step.from, step.to, step.peer)));
    let (id, _) = cable.established();
    let now = cable.now;
    cable.hosts[0].disconnect(now, id).expect("it stands");
    cable.settle();
    cable.wait();
    let chain = |peer, phases: &[Phase]| -> Vec<_> {
        phases
            .windows(2)
            .map(|two| (two[0], two[1], peer))
            .collect()
    };
    let expected = [
        Phase::Gone,
        Phase::ReqSent,
        Phase::Replied,
        Phase::Established,
        Phase::DreqSent,
        Phase::TimeWait,
        Phase::Gone,
    ];
    assert_eq!(take(&asking), chain(cable.address(1), &expected));
    let expected = [
        Phase::Gone,
        Phase::ReqReceived,
        Phase::RepSent,
        Phase::Established,
        Phase::TimeWait,
        Phase::Gone,
    ];
    assert_eq!(take(&asked), chain(cable.address(0), &expected));
}

#[test]
fn a_watcher_sees_every_phase_of_an_id_from_its_making_to_its_end() {
    let mut cable = Cable::new();
    let (seen, mut note) = notebook();
    cable.hosts[0].observe(move |step| note((step.id, step.from, step.to)));
    let (id, _) = cable.established();
    let now = cable.now;
    cable.hosts[0].disconnect(now, id).expect("it stands");
    cable.settle();
    cable.hosts[0].destroy(now, id).expect("it is there");
    let phases = [
        IdPhase::Gone,
        IdPhase::Idle,
        IdPhase::Resolved,
        IdPhase::Connecting,
        IdPhase::Responded,
        IdPhase::Established,
        IdPhase::Disconnecting,
        IdPhase::Over,
        IdPhase::Gone,
    ];
    let expected: Vec<_> = phases.windows(2).map(|two| (id, two[0], two[1])).collect();
    assert_eq!(take(&seen), expected);
}

#[test]
fn a_watcher_sees_what_becomes_of_a_request_and_of_its_listener() {
    let mut cable = Cable::new();
    let (seen, mut note) = notebook();
    cable.hosts[1].observe(move |step| note((step.from, step.to)));
    let (_, asked) = cable.requested(&params(17));
    let now = cable.now;
    cable.hosts[1].reject(now, asked, b"no").expect("it waits");
    let steps = [
        (IdPhase::Gone, IdPhase::Idle),
        (IdPhase::Idle, IdPhase::Listening),
        (IdPhase::Gone, IdPhase::Requested),
        (IdPhase::Requested, IdPhase::Over),
    ];
    assert_eq!(take(&seen), steps);
}

#[test]
fn a_question_is_seen_by_who_asks_and_by_who_answers() {
    let mut cable = Cable::new();
    let (asking, mut note) = notebook();
    cable.hosts[0].observe_ib(move |step| note((step.from, step.to)));
    let (asked, mut note) = notebook();
    cable.hosts[1].observe_ib(move |step| note((step.from, step.to)));
    cable.listen(1, PortSpace::Udp, Kind::Ud, 9);
    let id = cable.resolved(0, PortSpace::Udp, Kind::Ud, 9);
    let now = cable.now;
    cable.hosts[0].connect(now, id, &params(17)).expect("asked");
    let crate::rdma::Event::ConnectRequest { id: request, .. } = cable.only(1) else {
        panic!("it is asked")
    };
    let answered = cable.hosts[1].accept(now, request, &params(18));
    answered.expect("it waits");
    cable.settle();
    let (gone, sent) = (Phase::Gone, Phase::SidrSent);
    assert_eq!(take(&asking), [(gone, sent), (sent, gone)]);
    let decides = Phase::SidrReqReceived;
    let steps = [(gone, decides), (decides, Phase::SidrDone)];
    assert_eq!(take(&asked), steps);
}
