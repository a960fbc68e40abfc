//! The distribution's own programs, unmodified, with the library in place of libibverbs.so.1: pairs
//! of them on two loopback addresses. A program that is not installed is skipped, and said so.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed unwrap is a failed test"
)]

mod c;
mod library;
mod names;
mod pair;
mod served;

use pair::{At, Pair, Services, alone, both};
use served::Served;
use std::time::Duration;
use trunkline::Node;
use trunkline_testkit::programs::PairEnded;

/// Runs the program with these options as server and client; both have to end well.
fn run(program: &str, options: &str) -> Option<PairEnded> {
    let ended = Pair::start(program, options)?.wait();
    assert!(ended.is_good(), "{program} {options}\n{ended}");
    Some(ended)
}

#[test]
fn the_device_is_listed_where_an_address_is_set() {
    let Some(listed) = alone("ibv_devices", At::Address("127.0.0.1")) else {
        return;
    };
    assert!(
        listed.contains("trunk0") && listed.contains("02005efe7f000001"),
        "{listed}"
    );
    let none = alone("ibv_devices", At::Nowhere).unwrap();
    assert!(!none.contains("trunk0"), "{none}");
}

#[test]
fn each_address_and_each_socket_is_a_device() {
    let Some(listed) = alone("ibv_devices", At::Address("127.0.0.1,127.0.0.2")) else {
        return;
    };
    for line in ["trunk0", "02005efe7f000001", "trunk1", "02005efe7f000002"] {
        assert!(listed.contains(line), "{listed}");
    }
    let services = Services::new();
    let sockets = services.sockets.join(",");
    let about = alone("ibv_devinfo -v", At::Socket(&sockets)).unwrap();
    for device in ["trunk0", "trunk1"] {
        assert_eq!(about.matches(device).count(), 1, "{about}");
    }
    for service in &services.services {
        let gid = service.node().gid().to_string();
        assert_eq!(about.matches(&gid).count(), 1, "{gid}\n{about}");
    }
    let Some(pair) = Pair::start_beside("ibv_rc_pingpong", "-g 0") else {
        return;
    };
    let ended = pair.wait();
    assert!(ended.is_good(), "{ended}");
    // One that is not there is told by the program.
    let [_, said] = both("ibv_devinfo -d trunk2", At::Socket(&sockets)).unwrap();
    assert!(said.contains("trunk2"), "{said}");
}

/// valgrind takes away what the kernel shows of the clock, and the library is not to miss it.
#[test]
fn programs_of_a_service_run_under_valgrind() {
    let services = Services::new();
    let program = "valgrind -q ibv_rc_pingpong";
    let Some(pair) = Pair::start_served(program, "-g 0 -n 20", &services) else {
        return;
    };
    let ended = pair.wait();
    assert!(ended.is_good(), "{ended}");
}

#[test]
fn why_the_device_cannot_be_opened_is_said_once() {
    let addresses = pair::Addresses::new();
    let taken = Node::builder().address(addresses.server.parse().unwrap());
    let _taken = taken.build().unwrap();
    let long = format!("/tmp/{}", "x".repeat(200));
    let process = format!("process {}", std::process::id());
    for (at, parts) in [
        (
            At::Socket("/nowhere/socket"),
            ["no service at /nowhere/socket", "trunkline run"],
        ),
        (At::Socket(&long), ["has 205 bytes", "at most 107"]),
        (
            At::Address(&addresses.server),
            [&process, "TRUNKLINE_SOCKET"],
        ),
        (
            At::Address("here"),
            ["'here' is no IP address", "TRUNKLINE_ADDRESS"],
        ),
    ] {
        // It asks for the GUID first, and opens the device then.
        let Some([_, said]) = both("ibv_devinfo -v", at) else {
            return;
        };
        let ours: Vec<_> = said
            .lines()
            .filter(|line| line.contains("Trunkline"))
            .collect();
        let [line] = ours[..] else {
            panic!("{said}");
        };
        for part in parts {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
    }
}

#[test]
fn a_variable_that_is_empty_counts_as_not_set() {
    for at in [At::Socket(""), At::Address("")] {
        let Some([listed, said]) = both("ibv_devices", at) else {
            return;
        };
        assert!(!listed.contains("trunk0"), "{listed}");
        assert!(!said.contains("Trunkline"), "{said}");
    }
}

#[test]
fn the_device_tells_what_it_can() {
    let pair = pair::Addresses::new();
    let Some(told) = alone("ibv_devinfo -v", At::Address(&pair.server)) else {
        return;
    };
    for fact in [
        "hca_id:\ttrunk0",
        "state:\t\t\tPORT_ACTIVE (4)",
        "link_layer:\t\tEthernet",
        &format!("::ffff:{}, RoCE v2", pair.server),
        "atomic_cap:\t\t\tATOMIC_GLOB (2)",
    ] {
        assert!(told.contains(fact), "no {fact:?} in\n{told}");
    }
}

#[test]
fn pingpongs_run_with_polling_and_with_events() {
    for program in [
        "ibv_rc_pingpong",
        "ibv_uc_pingpong",
        "ibv_ud_pingpong",
        "ibv_srq_pingpong",
    ] {
        for options in [
            "-n 200 -c",
            "-n 200 -e",
            "-n 100 -s 1",
            "-n 100 -s 1000 -e -c",
        ] {
            let Some(ended) = run(program, &format!("-g 0 {options}")) else {
                return;
            };
            assert!(
                ended.client.said.contains("iters in"),
                "{program} {options}\n{ended}"
            );
        }
    }
}

#[test]
fn pingpongs_run_with_large_messages_many_qps_and_the_new_way_to_post() {
    run("ibv_rc_pingpong", "-g 0 -n 30 -s 1048576 -c");
    run("ibv_rc_pingpong", "-g 0 -n 200 -N");
    run("ibv_uc_pingpong", "-g 0 -n 100 -s 4096 -m 4096");
    run("ibv_srq_pingpong", "-g 0 -n 200 -q 64 -e");
}

#[test]
fn what_is_not_offered_is_refused_in_words() {
    let Some(pair) = Pair::start("ibv_rc_pingpong", "-g 0 -o") else {
        return;
    };
    let ended = pair.wait();
    assert!(
        !ended.is_good() && ended.server.said.contains("ODP"),
        "{ended}"
    );
}

#[test]
fn a_program_that_asks_for_times_of_completions_gets_them() {
    let Some(ended) = run("ibv_rc_pingpong", "-g 0 -n 200 -t") else {
        return;
    };
    // It prints the least, the greatest and the average time from a SEND to its answer.
    let said = &ended.client.said;
    let clock = |what: &str| {
        let line = said.lines().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("{what}: {said}")).to_owned()
    };
    println!("{}", clock("completion clock"));
}

#[test]
fn a_killed_program_ends_its_peer_with_an_error() {
    for options in ["-g 0 -n 1000000000", "-g 0 -n 1000000000 -e"] {
        let Some(pair) = Pair::start("ibv_rc_pingpong", options) else {
            return;
        };
        let ended = pair.kill_server();
        assert!(
            !ended.is_good() && ended.client.said.contains("status"),
            "{ended}"
        );
    }
}

/// It ends by the error of its next call, which comes sooner than the thread that tells events.
#[test]
fn a_program_that_ends_as_its_service_does_says_why() {
    for options in ["-g 0 -n 1000000000", "-g 0 -n 1000000000 -e"].repeat(4) {
        let (service, socket) = Served::start();
        let Some(pair) = Pair::start_at_one("ibv_rc_pingpong", options, &socket) else {
            return;
        };
        std::thread::sleep(Duration::from_millis(200));
        drop(service);
        let ended = pair.wait();
        for (end, said) in [
            ("client", &ended.client.said),
            ("server", &ended.server.said),
        ] {
            let lines = said.matches("trunk0 is down: ").count();
            assert_eq!(lines, 1, "{options}, the {end}: {ended}");
        }
    }
}

/// Options that each program of perftest takes.
const EACH: [&str; 3] = ["", "-e", "--use_old_post_send"];

/// Runs a program of perftest with options of its own and those that all take.
fn perftest(program: &str, own: &[&str]) {
    for options in own.iter().chain(&EACH) {
        let options = format!("-x 0 -F -n 100 {options}");
        let Some(ended) = run(program, &options) else {
            return;
        };
        assert!(
            ended.client.said.contains("#bytes"),
            "{program} {options}\n{ended}"
        );
    }
}

#[test]
fn perftest_sends() {
    perftest(
        "ib_send_bw",
        &[
            "-c UC",
            "-c UD",
            "-c UD -e",
            "-b",
            "-q 4",
            "-s 65536 -q 4 -b",
            // With more QPs it takes 100 completions for each event, and waits for the next event
            // while the CQ holds what is left.
            "-s 65536 -b -e",
            "-l 4",
            "-r 16 -t 8",
        ],
    );
    perftest(
        "ib_send_lat",
        &["-c UC", "-c UD", "-I 128 -s 100", "-s 65536"],
    );
    run("ib_send_bw", "-x 0 -F -n 100 --use-srq -q 4");
}

#[test]
fn perftest_writes() {
    // WRITEs raise no events.
    for options in [
        "",
        "-c UC",
        "-b",
        "-q 4",
        "-b -q 4",
        "-t 1 -l 1",
        "--use_old_post_send",
    ] {
        run("ib_write_bw", &format!("-x 0 -F -n 100 {options}"));
    }
    for options in ["", "-c UC", "-I 128 -s 100", "--use_old_post_send"] {
        run("ib_write_lat", &format!("-x 0 -F -n 100 {options}"));
    }
}

#[test]
fn perftest_reads_and_atomics() {
    perftest("ib_read_bw", &["-q 4", "-b", "-o 4"]);
    perftest("ib_read_lat", &["-s 65536"]);
    perftest("ib_atomic_bw", &["-A CMP_AND_SWAP", "-q 4", "-b"]);
    perftest("ib_atomic_lat", &["-A CMP_AND_SWAP"]);
}

#[test]
fn programs_in_c_find_what_the_manual_pages_promise() {
    c::run(None);
}

#[test]
fn a_qp_waits_for_a_silent_peer_as_long_as_it_was_told() {
    c::run(Some("timeouts"));
}

#[test]
fn threads_of_a_program_make_use_and_destroy_objects_of_a_device_at_once() {
    c::run(Some("threads"));
}

#[test]
fn threads_that_wait_at_a_channel_hear_of_the_end_of_the_service() {
    c::run_to_the_end(c::Reader::Reads);
}

/// A pipe that nobody reads any more kills who writes there (SIGPIPE), and a full one makes it
/// wait, unless that is seen to.
#[test]
fn a_program_whose_standard_error_nobody_reads_outlives_its_service() {
    for reader in [c::Reader::Gone, c::Reader::Sleeps] {
        c::run_to_the_end(reader);
    }
}

#[test]
fn programs_of_two_services_share_their_connections() {
    let services = Services::new();
    for (program, options) in [
        ("ibv_rc_pingpong", "-g 0 -n 200 -c"),
        ("ibv_rc_pingpong", "-g 0 -n 200 -e -s 100000"),
        ("ibv_uc_pingpong", "-g 0 -n 200 -e"),
        ("ibv_ud_pingpong", "-g 0 -n 200"),
        ("ibv_srq_pingpong", "-g 0 -n 200 -q 8 -e"),
        ("ib_write_bw", "-x 0 -F -n 200 -q 4"),
        ("ib_read_lat", "-x 0 -F -n 100"),
        ("ib_send_bw", "-x 0 -F -n 200 -b -e"),
        ("ib_atomic_bw", "-x 0 -F -n 100"),
    ] {
        let Some(pair) = Pair::start_served(program, options, &services) else {
            continue;
        };
        let ended = pair.wait();
        assert!(ended.is_good(), "{program} {options}\n{ended}");
    }
    for service in &services.services {
        assert!(service.node().connection_count() <= 4, "one pool for all");
        assert_eq!(service.violations(), 0);
    }
}

/// perftest waits for the event of its SEND and then for that of the reply, and polls the wrong CQ
/// for ever once they come the other way round.
#[test]
fn a_program_that_waits_for_events_ends_well_beside_bulk_traffic_of_the_same_services() {
    let services = Services::new();
    for options in ["-s 64", "-s 8192"] {
        let bulk = Pair::start_served("ib_write_bw", "-x 0 -F -b -D 4", &services);
        let Some(bulk) = bulk else {
            return;
        };
        let options = format!("-x 0 -F -e -n 4000 {options}");
        let waiting = bulk.beside("ib_send_lat", &options, &services);
        let ended = waiting.expect("perftest has both").wait();
        assert!(ended.is_good(), "{options}: {ended}");
        let ended = bulk.wait();
        assert!(ended.is_good(), "{ended}");
    }
}
