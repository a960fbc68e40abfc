//! Programs that are killed, in whatever they do.

use super::peers::{Asking, Neighbour, Peer};
use super::{alone, memory_files, new_service, play, within};
use std::time::Duration;
use trunkline::Remote;

const REAPED: Duration = Duration::from_secs(5);

/// Kills a program in the middle of that.
fn kill(role: &str, has_qp: bool) {
    let _alone = alone();
    let (service, path) = new_service();
    let peer = Peer::new();
    let beside = Neighbour::start(&path, &peer).stop().2;
    let quiet = || service.node().live_objects();
    // What was exchanged is acknowledged by then.
    std::thread::sleep(Duration::from_millis(200));
    let before = quiet();
    let neighbour = Neighbour::exchange(beside, &peer);
    let files = memory_files();

    let mut process = play(role.trim_end_matches(" read"), &path);
    let asking = if has_qp {
        let (qp, cq) = peer.qp();
        let to = process.hear();
        qp.connect(to).unwrap();
        process.tell(&(qp.address(), peer.mr.remote(0)));
        let remote: Remote = process.hear();
        Some(Asking::start(&peer, (qp, cq), role, remote))
    } else {
        let () = process.hear();
        None
    };
    std::thread::sleep(Duration::from_millis(100));
    let at = process.kill();
    let pid = process.pid();
    if let Some(asking) = asking {
        let (heard, status) = asking.end();
        println!("{role}: {status:?} after {:?}", heard - at);
        assert!(heard - at < Duration::from_secs(2), "{:?}", heard - at);
    }
    within(REAPED, "clients() without it", || {
        let clients = service.clients();
        clients.iter().all(|client| client.pid != Some(pid))
    });
    println!("{role}: no client any more after {:?}", at.elapsed());
    std::thread::sleep(Duration::from_millis(50));
    let (rounds, slowest, _beside) = neighbour.stop();
    println!("{role}: {rounds} messages beside, {slowest:?} the slowest");
    assert!(
        rounds > 0 && slowest < Duration::from_millis(500),
        "{slowest:?}"
    );
    within(REAPED, "objects as before", || {
        let now = quiet();
        if at.elapsed() > REAPED {
            println!("{role}: {before:?}, and now {now:?}");
        }
        now.qps == before.qps && now.flows == before.flows && now.requests == before.requests
    });
    within(REAPED, "segments as before", || memory_files() <= files);
    println!("{role}: all is gone after {:?}", at.elapsed());
    assert_eq!(service.violations(), 0);
}

macro_rules! killed {
    ($($name:ident: $role:literal, $has_qp:literal;)*) => {$(
        #[test]
        fn $name() {
            kill($role, $has_qp);
        }
    )*};
}

killed! {
    killed_after_it_connected: "connected", false;
    killed_after_it_attached: "attached", false;
    killed_when_it_is_idle: "idle", true;
    killed_when_it_sends: "sending", true;
    killed_when_it_receives: "receiving", true;
    killed_when_its_reads_are_answered: "reading", true;
    killed_when_it_is_read: "idle read", true;
    killed_when_its_own_memory_is_written: "foreign", true;
    killed_when_its_own_memory_is_read: "foreign read", true;
    killed_when_it_receives_by_an_srq: "srq", true;
    killed_when_it_has_windows: "window", true;
    killed_while_it_promotes_memory: "promoting", false;
}
