//! Shared memory, between two ports of one process and between two processes.

use super::ends::{End, FAMILIES, LENGTHS, carry, meet, refused, stream, until};
use crate::port::unique;
use crate::{DpdkDevice, DpdkSpec};
use socket2::{Domain, SockAddr, Socket, Type};
use std::process::{Command, Stdio};
use trunkline::Workers;
use trunkline_dataplane::link::Device;

/// A socket that no other test has.
fn socket() -> String {
    format!("trunkline-test-{}-{}", std::process::id(), unique())
}

fn pair(words: &str, addresses: [&str; 2]) -> [End; 2] {
    let (socket, first, second) = (socket(), unique(), unique());
    let spec = |device, role| format!("net_memif{device},role={role},socket={socket}{words}");
    [
        End::open(&spec(first, "server"), addresses[0]),
        End::open(&spec(second, "client"), addresses[1]),
    ]
}

#[test]
fn both_ends_carry_datagrams_of_all_lengths() {
    for addresses in FAMILIES {
        let [mut one, mut other] = pair("", addresses);
        meet(&mut one, &mut other);
        carry(&mut one, &mut other, &LENGTHS);
        carry(&mut other, &mut one, &LENGTHS);
        stream(&mut one, &mut other, 5000, 1040);
        stream(&mut other, &mut one, 5000, 4152);
    }
}

#[test]
fn frames_in_several_pieces_come_whole() {
    let [mut one, mut other] = pair(",bsize=1024", FAMILIES[0]);
    meet(&mut one, &mut other);
    carry(&mut one, &mut other, &LENGTHS);
    stream(&mut one, &mut other, 2000, 4152);
}

#[test]
fn a_link_is_down_until_there_is_another_end_and_when_it_goes() {
    let (socket, first, second) = (socket(), unique(), unique());
    let server = format!("net_memif{first},role=server,socket={socket}");
    let client = format!("net_memif{second},role=client,socket={socket}");
    let mut one = End::open(&server, FAMILIES[0][0]);
    for _ in 0..2 {
        until("it is down", || !works(&one));
        let mut other = End::open(&client, FAMILIES[0][1]);
        meet(&mut one, &mut other);
        assert!(works(&one) && works(&other));
        carry(&mut one, &mut other, &LENGTHS);
        carry(&mut other, &mut one, &LENGTHS);
    }
}

#[test]
fn a_server_is_opened_again() {
    let (socket, first, second) = (socket(), unique(), unique());
    let folder = std::env::temp_dir().join(&socket);
    let in_folder = format!("{},socket-abstract=no", folder.display());
    for socket in [&socket, &in_folder] {
        for _ in 0..3 {
            let server = format!("net_memif{first},role=server,socket={socket}");
            let mut one = End::open(&server, FAMILIES[0][0]);
            let client = format!("net_memif{second},role=client,socket={socket}");
            let mut other = End::open(&client, FAMILIES[0][1]);
            meet(&mut one, &mut other);
            carry(&mut one, &mut other, &[16, 4152]);
        }
    }
    assert!(!folder.exists());
}

#[test]
fn the_end_that_calls_may_come_first_and_finds_a_server_that_comes_back() {
    let (socket, first, second) = (socket(), unique(), unique());
    // In one process the driver takes both for the same if they have the same words.
    let [there, here] = ["/.", ""].map(|same| {
        let folder = std::env::temp_dir();
        format!("{}{same}/{socket},socket-abstract=no", folder.display())
    });
    let client = format!("net_memif{second},role=client,socket={there}");
    let mut other = End::open(&client, FAMILIES[0][1]);
    for _ in 0..2 {
        until("it is down", || !works(&other));
        let server = format!("net_memif{first},role=server,socket={here}");
        let mut one = End::open(&server, FAMILIES[0][0]);
        meet(&mut one, &mut other);
        carry(&mut one, &mut other, &LENGTHS);
        carry(&mut other, &mut one, &LENGTHS);
    }
}

#[test]
fn a_group_has_a_queue_for_each_worker() {
    let socket = socket();
    let [mut ours, mut theirs] = ["server", "client"].map(|role| {
        let spec = format!("net_memif{},role={role},socket={socket}", unique());
        let spec: DpdkSpec = spec.parse().unwrap();
        DpdkDevice::open_group(&spec, Workers::new(3).unwrap()).unwrap()
    });
    let up = |device: &DpdkDevice| device.link().is_some_and(|link| link.works);
    until("they are up", || up(&ours[0]) && up(&theirs[0]));
    for _ in 0..2 {
        for (at, (one, other)) in ours.iter_mut().zip(&mut theirs).enumerate() {
            one.allocate(100).unwrap().fill(at as u8);
            one.push(None);
            // Who receives makes room when it looks.
            until("there is room", || {
                assert!(!other.look().unwrap());
                one.kick().unwrap().sent == 1
            });
            until("it comes", || other.look().unwrap());
            assert_eq!(other.front().unwrap().frame, [at as u8; 100]);
            other.recycle();
        }
        std::mem::swap(&mut ours, &mut theirs);
    }
}

/// Several devices share the socket that their peers call.
#[test]
fn servers_on_one_socket_are_told_apart_by_their_ids() {
    let socket = socket();
    let open = |role, id, address| {
        let device = unique();
        let spec = format!("net_memif{device},role={role},id={id},socket={socket}");
        End::open(&spec, address)
    };
    let [here, there] = FAMILIES[0];
    let mut ends = [0, 1].map(|id| [open("server", id, here), open("client", id, there)]);
    for [one, other] in &mut ends {
        meet(one, other);
        carry(one, other, &[16, 4152]);
    }
    let [first, mut second] = ends;
    drop(first);
    let mut again = [open("server", 0, here), open("client", 0, there)];
    for [one, other] in [&mut second, &mut again] {
        meet(one, other);
        carry(one, other, &[16, 4152]);
    }
}

/// What tells the other process of a test where to call.
const CALL: &str = "TRUNKLINE_TEST_MEMIF";
/// Bytes of the datagram that says that it is over.
const OVER: usize = 17;

/// Sends back what comes, until it is over.
fn echo(socket: &str) {
    let [_, there] = FAMILIES[0];
    let mut end = End::open(&format!("net_memif0,role=client,socket={socket}"), there);
    loop {
        for (arrival, datagram) in end.wait() {
            if datagram.len() == OVER {
                return;
            }
            until("there is room", || end.send(arrival.path.src, &datagram));
        }
    }
}

#[test]
fn two_processes_share_memory() {
    if let Ok(socket) = std::env::var(CALL) {
        return echo(&socket);
    }
    let (socket, [here, there]) = (socket(), FAMILIES[0]);
    let name = "tests::memif::two_processes_share_memory";
    // The one that calls comes first.
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CALL, &socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut end = End::open(
        &format!("net_memif{},role=server,socket={socket}", unique()),
        here,
    );
    let to = there.parse().unwrap();
    for length in LENGTHS.into_iter().filter(|length| *length != OVER) {
        let datagram = end.datagram(to, length);
        // Until both know each other's addresses some are lost.
        until("it comes back", || {
            end.send(to, &datagram);
            end.receive().iter().any(|(_, bytes)| *bytes == datagram)
        });
    }
    let over = end.datagram(to, OVER);
    until("it is over", || {
        end.send(to, &over);
        other.try_wait().unwrap().is_some()
    });
    assert!(other.wait().unwrap().success());
}

fn works(end: &End) -> bool {
    end.port.link_state(end.address).unwrap().works
}

/// The process that serves there may end.
#[test]
fn a_device_whose_socket_is_taken_is_opened_when_that_is_free() {
    let socket = socket();
    let folder = std::env::temp_dir().join(&socket);
    let in_folder = format!("{},socket-abstract=no", folder.display());
    let number = unique();
    let places = [format!("\0{socket}"), folder.display().to_string()];
    for (words, place) in [&socket, &in_folder].into_iter().zip(places) {
        let taken = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        taken.bind(&SockAddr::unix(place).unwrap()).unwrap();
        taken.listen(1).unwrap();
        let server = format!("net_memif{number},role=server,socket={words}");
        for _ in 0..2 {
            refused(&server, FAMILIES[0][0], "a process serves there already");
        }
        drop(taken);
        End::open(&server, FAMILIES[0][0]);
    }
}
