//! What becomes of an event between the thread that has taken it out and others.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::rdma_cm::Params;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicU8;
use std::time::Instant;
use trunkline_wire::Qpn;

const LIMIT: Duration = Duration::from_secs(30);

/// A node on an address that no other test of this program uses.
pub(in crate::rdma_cm) fn node() -> (Node, IpAddr) {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    let address = Ipv4Addr::new(127, 200 + (pid >> 8) as u8 % 50, pid as u8, last).into();
    (Node::builder().address(address).build().unwrap(), address)
}

fn wait_for_event(channel: &EventChannel) -> ChannelEvent {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(event) = channel.0.queue.pop() {
            return event;
        }
        assert!(Instant::now() < end, "nothing happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn resolved(channel: &EventChannel, to: SocketAddr) -> CmId {
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    id.resolve_addr(to, LIMIT).unwrap();
    let event = channel.get_event(LIMIT).unwrap();
    assert!(matches!(event.kind, CmEventKind::AddressResolved));
    id
}

#[test]
fn a_request_whose_listener_goes_while_it_is_taken_out_is_refused_at_once() {
    let ((server, there), (client, _)) = (node(), node());
    let listening = server.create_event_channel().unwrap();
    let listener = listening.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    let at = listener.bind((there, 0).into()).unwrap();
    listener.listen(0).unwrap();
    let channel = client.create_event_channel().unwrap();
    let id = resolved(&channel, at);
    id.connect(&Params::new(Qpn::from_wire(77))).unwrap();
    let taken = wait_for_event(&listening);
    drop(listener);
    assert!(listening.tell(taken).is_none());
    // Nobody decides any more, and the peer does not wait for the minute that a program has.
    let event = channel.get_event(LIMIT).expect("an answer");
    assert!(
        matches!(event.kind, CmEventKind::Rejected { .. }),
        "{event:?}"
    );
}

#[test]
fn an_event_that_is_taken_out_while_its_id_moves_is_told() {
    let (node, address) = node();
    let [from, to] = [(); 2].map(|()| node.create_event_channel().unwrap());
    let id = from.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    id.resolve_addr((address, 1).into(), LIMIT).unwrap();
    let taken = wait_for_event(&from);
    id.migrate(&to).unwrap();
    let event = from.tell(taken).expect("it comes once");
    assert!(matches!(event.kind, CmEventKind::AddressResolved));
    assert_eq!(event.id.0.id, id.0.id);
    // What comes later comes out of the other channel.
    id.resolve_route().unwrap();
    assert!(to.get_event(LIMIT).is_some() && from.poll_event().is_none());
}

#[test]
fn an_id_without_handles_leaves_no_entry() {
    let (node, _) = node();
    let channel = node.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    assert_eq!(node.shared.here().ids.lock().len(), 1);
    drop(id);
    assert_eq!(node.shared.here().ids.lock().len(), 0);
}
