//! Datagram services.

use super::{Cable, is_refused, params};
use crate::rdma::{Event, Id, Kind, Params, PortSpace, UdPeer};
use trunkline_wire::Qpn;
use trunkline_wire::cm::SidrStatus;

fn asked(cable: &mut Cable, private_data: &[u8]) -> (Id, Event) {
    cable.listen(1, PortSpace::Udp, Kind::Ud, 7174);
    let id = cable.resolved(0, PortSpace::Udp, Kind::Ud, 7174);
    let now = cable.now;
    let asks = Params {
        private_data,
        ..params(17)
    };
    cable.hosts[0].connect(now, id, &asks).expect("all is well");
    (id, cable.only(1))
}

#[test]
fn a_question_is_answered_with_qp_and_key() {
    let mut cable = Cable::new();
    let (id, event) = asked(&mut cable, &[7; Params::CONNECT_UD]);
    let Event::ConnectRequest {
        id: question, data, ..
    } = event
    else {
        panic!("a request, not {event:?}")
    };
    assert_eq!(data[..], [7; Params::CONNECT_UD]);
    let now = cable.now;
    let answer = Params {
        private_data: b"here",
        ..params(29)
    };
    cable.hosts[1]
        .accept(now, question, &answer)
        .expect("asked");
    let event = cable.only(0);
    let Event::Established {
        id: answered,
        ud: Some(peer),
        data,
    } = event
    else {
        panic!("an answer, not {event:?}")
    };
    let qkey = Params::UDP_QKEY;
    assert_eq!(
        (answered, peer),
        (
            id,
            UdPeer {
                qpn: Qpn::from_wire(29),
                qkey
            }
        )
    );
    assert_eq!((&data[..4], data.len()), (&b"here"[..], Params::ACCEPT_UD));
    assert_eq!(cable.said(), [(0, "SIDR_REQ"), (1, "SIDR_REP")]);
    assert!(cable.heard(1).is_empty());
    let late = cable.hosts[1].reject(now, question, b"");
    assert!(is_refused(&late, question));
}

#[test]
fn a_question_without_a_good_answer_says_why() {
    let mut cable = Cable::new();
    let (id, event) = asked(&mut cable, b"");
    let now = cable.now;
    cable.hosts[1].reject(now, event.id(), b"").expect("asked");
    let status = Some(SidrStatus::Refused);
    assert_eq!(cable.only(0), Event::Unreachable { id, status });
    let id = cable.resolved(0, PortSpace::Udp, Kind::Ud, 9);
    cable.hosts[0]
        .connect(now, id, &params(17))
        .expect("all is well");
    let status = Some(SidrStatus::Unsupported);
    assert_eq!(cable.only(0), Event::Unreachable { id, status });
}

#[test]
fn a_question_that_nobody_decides_on_is_refused_in_time() {
    let mut cable = Cable::new();
    let (id, event) = asked(&mut cable, b"");
    let mut heard = std::vec::Vec::new();
    while heard.is_empty() {
        cable.wait();
        heard = cable.heard(1);
    }
    assert_eq!(heard, [Event::ConnectError { id: event.id() }]);
    // The question itself is more patient than its asker.
    assert!(matches!(cable.heard(0)[..], [Event::Unreachable { id: asked, .. }] if asked == id));
}
