//! `--port`: the same commands on whatever carries packets.

use crate::common::address;
use crate::library::library;
use crate::{complaint, run, text};
use serde_json::Value;
use std::process::{Command, Output};

/// What a shell says in a network namespace of its own, where 10.9.0.1 is at one end of a link, and
/// 10.9.0.2 at the other, in a namespace that `$FAR` enters. All that runs there ends with it.
fn on_a_link(script: &str) -> Output {
    const PREPARE: &str = "unshare --net sleep 60 & HOST=$!
        while [ $(readlink /proc/$HOST/ns/net) = $(readlink /proc/self/ns/net) ]
        do sleep 0.02; done
        FAR=\"nsenter --net=/proc/$HOST/ns/net\"
        ip link add near type veth peer name far netns $HOST
        $FAR ip address add 10.9.0.2/24 dev far
        $FAR ip link set far mtu 4200 up
        ip address add 10.9.0.1/24 dev near
        ip link set near mtu 4200 up
        ip link set lo up
        ";
    let script = format!("set -e\n{PREPARE}{script}");
    let outer = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut command = Command::new("timeout");
    command.args(["60", "unshare"]).args(outer);
    command.args(["sh", "-c", &script]);
    command.env("TRUNKLINE_LIBRARY", library().join("libibverbs.so.1"));
    command.env("TRUNKLINE", env!("CARGO_BIN_EXE_trunkline"));
    command.output().unwrap()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_measurement_runs_over_every_kind_of_port() {
    for (ours, theirs) in [("packet", "packet"), ("xdp", "xdp"), ("xdp", "udp")] {
        let output = on_a_link(&format!(
            "$FAR $TRUNKLINE bench bw --listen 10.9.0.2 --port {theirs} --once > /dev/null &
            SERVER=$!
            until $FAR ss -Htln | grep -q 18515; do sleep 0.05; done
            $TRUNKLINE bench bw --connect 10.9.0.2 --port {ours} --op send --size 100000 \
                --duration 0.5 --verify --json
            wait $SERVER"
        ));
        let said = text(&output.stderr);
        assert!(output.status.success(), "{ours} to {theirs}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["operations"].as_u64().unwrap() > 10, "{report}");
    }
}

/// A veth has one receive queue unless it is asked for more.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_measurement_has_the_workers_that_the_queues_of_both_ends_take() {
    let output = on_a_link(
        "ip link del near
        ip link add near numrxqueues 2 numtxqueues 2 type veth peer name far netns $HOST \
            numrxqueues 2 numtxqueues 2
        $FAR ip address add 10.9.0.2/24 dev far
        ip address add 10.9.0.1/24 dev near
        $FAR ethtool -L far rx 2 tx 2
        $FAR ip link set far up
        ethtool -L near rx 2 tx 2
        ip link set near up
        $FAR $TRUNKLINE bench rate --listen 10.9.0.2 --port xdp --once > /dev/null &
        SERVER=$!
        until $FAR ss -Htln | grep -q 18515; do kill -0 $SERVER; sleep 0.05; done
        $TRUNKLINE bench rate --connect 10.9.0.2 --port xdp --workers 2 --duration 0.5 --json
        wait $SERVER",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["operations"].as_u64().unwrap() > 10, "{report}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn traffic_goes_on_after_a_link_was_down_and_nothing_is_lost() {
    for port in ["packet", "xdp"] {
        let output = on_a_link(&format!(
            "$FAR $TRUNKLINE bench bw --listen 10.9.0.2 --port {port} --once > /dev/null &
            SERVER=$!
            until $FAR ss -Htln | grep -q 18515; do sleep 0.05; done
            (sleep 1; $FAR ip link set far down; sleep 1; $FAR ip link set far up) &
            $TRUNKLINE bench bw --connect 10.9.0.2 --port {port} --duration 8 --verify
            wait $SERVER"
        ));
        let said = text(&output.stderr);
        assert!(output.status.success(), "{port}: {said}");
        // Each second says how fast it was. The link is up in the third; a busy machine takes
        // longer.
        let rate = |second: usize| {
            let line = said
                .lines()
                .find(|line| line.contains(&format!("{second} s: ")));
            let line = line.unwrap_or_else(|| panic!("{port}, second {second}: {said}"));
            let words: Vec<_> = line.split_whitespace().collect();
            words[words.len() - 2].parse::<f64>().unwrap()
        };
        assert!((3..8).any(|second| rate(second) > 0.1), "{port}: {said}");
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn traffic_goes_on_within_a_second_of_the_carrier() {
    for port in ["udp", "packet", "xdp"] {
        let output = on_a_link(&format!(
            "$FAR $TRUNKLINE bench lat --listen 10.9.0.2 --port {port} --once > /dev/null &
            SERVER=$!
            until $FAR ss -Htln | grep -q 18515; do sleep 0.05; done
            (sleep 1; FROM=$(date +%s%N); $FAR ip link set far down; sleep 1
                $FAR ip link set far up; echo down for $(($(date +%s%N) - FROM)) >&2) &
            $TRUNKLINE bench lat --connect 10.9.0.2 --port {port} --duration 4 --json
            wait $SERVER"
        ));
        let said = text(&output.stderr);
        assert!(output.status.success(), "{port}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let down = said.lines().find_map(|line| line.strip_prefix("down for "));
        let down = down.unwrap().parse::<f64>().unwrap() / 1e9;
        // Half of the round trip that the link was down in.
        let longest = report["max_us"].as_f64().unwrap() * 2.0 / 1e6;
        assert!(longest > 0.9, "{port}: {longest} s: the link was up");
        assert!(
            longest < down + 1.0,
            "{port}: {longest} s, down for {down} s"
        );
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_service_runs_on_raw_frames_and_its_programs_do_not_notice() {
    if Command::new("ibv_rc_pingpong")
        .arg("--help")
        .output()
        .is_err()
    {
        return eprintln!("not run: ibv_rc_pingpong is not installed (ibverbs-utils)");
    }
    let output = on_a_link(
        "$FAR $TRUNKLINE serve --address 10.9.0.2 --socket @far --port xdp > /dev/null &
        $TRUNKLINE serve --address 10.9.0.1 --socket @near --port packet > /dev/null &
        until $FAR $TRUNKLINE run --socket @far true 2> /dev/null &&
            $TRUNKLINE run --socket @near true 2> /dev/null
        do sleep 0.05; done
        $FAR $TRUNKLINE run --socket @far ibv_rc_pingpong -g 0 -n 500 > /dev/null &
        until $FAR ss -Htln | grep -q 18515; do sleep 0.05; done
        $TRUNKLINE run --socket @near ibv_rc_pingpong -g 0 -n 500 10.9.0.2",
    );
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("500 iters in"), "{said}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_service_that_a_program_is_started_with_has_the_port_that_is_asked_for() {
    // The kernel lists sockets of AF_PACKET, one a line below a first one. A service ends a little
    // later than its last program.
    let show = "cat /proc/net/packet | wc -l";
    let gone = format!("while test $({show}) -gt 1; do sleep 0.05; done");
    let output = on_a_link(&format!(
        "$TRUNKLINE run --address 10.9.0.1 --linger 0 sh -c '{show}'
        $TRUNKLINE run --address 127.0.0.1 --port packet --linger 0 sh -c '{show}'
        {gone}
        TRUNKLINE_PORT=packet $TRUNKLINE run --address 127.0.0.2 --linger 0 sh -c '{show}'
        ! $TRUNKLINE run --address 10.9.0.1 --port carrier-pigeon true
        ! $TRUNKLINE run --address 10.9.0.7 --port packet true"
    ));
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), "1\n2\n2\n");
    for part in [
        "carrier-pigeon",
        "there are udp, packet, xdp, auto",
        "10.9.0.7",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_port_that_cannot_be_had_says_what_is_missing() {
    for (words, named) in [
        (
            "--address 10.9.0.1 --port xdp --workers 3",
            &["interface near has 1 receive queues", "3 workers"][..],
        ),
        (
            "--address 10.9.0.7 --port packet",
            &["10.9.0.7 is not an address of this machine"],
        ),
    ] {
        let script = format!("exec $TRUNKLINE serve --socket @a {words}");
        let said = complaint(&on_a_link(&script), 1);
        for part in named {
            assert!(said.contains(part), "{words}: {said}");
        }
    }
    for port in ["udp", "packet", "xdp"] {
        let set = "ip link set near mtu 300";
        let serve = format!("$TRUNKLINE serve --socket @a --address 10.9.0.1 --port {port}");
        let said = complaint(&on_a_link(&format!("{set}; exec {serve}")), 1);
        let why = "carries 272 bytes behind a UDP header, and connection management takes 280: \
                   raise the MTU of its interface by 8";
        assert!(said.contains(&format!("port {port} {why}")), "{said}");
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_interface_with_a_program_is_named_by_its_name() {
    let output = on_a_link(
        "$TRUNKLINE serve --address 127.0.0.1 --socket @a --port xdp > /dev/null &
        until $TRUNKLINE run --socket @a true 2> /dev/null; do sleep 0.05; done
        exec $TRUNKLINE serve --address 127.0.0.2 --socket @b --port xdp",
    );
    let said = complaint(&output, 1);
    let says = "cannot start a node on 127.0.0.2: interface lo has an XDP program already: ";
    assert!(said.starts_with(says), "{said}");
    assert!(said.ends_with("`ip link set lo xdp off`"), "{said}");
}

#[test]
fn nodes_that_cannot_share_an_interface_are_refused_before_anything_is_opened() {
    let (first, second) = (address().to_string(), address().to_string());
    let serve = ["serve", "--address", &first, "--address", &second];
    let sockets = ["--socket", "@a", "--socket", "@b"];
    let words = [&serve[..], &sockets, &["--port", "xdp"]].concat();
    let says = format!(
        "--port: xdp takes an interface for one node, and lo has both {first} and {second}: \
         give addresses of two interfaces, or another kind of port; try 'trunkline serve --help'"
    );
    assert_eq!(complaint(&run(&words), 2), says);
}

/// What `demo` says of two nodes of one host that frames do not join.
fn apart(port: &str, [client, server]: [&str; 2]) -> String {
    format!(
        "--port: nodes on raw frames ({port}) do not reach other nodes of their host, and this \
         one has both {client} and {server}: take a UDP socket (udp), or packet with loopback \
         addresses; try 'trunkline demo --help'"
    )
}

#[test]
fn a_demo_whose_nodes_would_not_reach_each_other_is_refused_before_anything_is_opened() {
    let (client, server) = (address().to_string(), address().to_string());
    let words = ["demo", "--client", &client, "--server", &server];
    let said = complaint(&run(&[&words[..], &["--port", "xdp"]].concat()), 2);
    assert_eq!(said, apart("xdp", [&client, &server]));
}

#[test]
#[ignore = "needs root and network namespaces"]
fn nodes_of_one_host_reach_each_other_by_frames_on_the_loop_alone() {
    let demo = "$TRUNKLINE demo --qps 10 --port packet --json";
    let output = on_a_link(&format!(
        "ip address add 10.7.0.1/32 dev lo
        {demo} > /dev/null
        exec {demo} --server 10.7.0.1"
    ));
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (port, server) in [
        ("packet", "10.9.0.3"),
        ("packet", "127.0.0.1"),
        ("xdp", "10.8.0.1"),
    ] {
        let said = on_a_link(&format!(
            "ip address add 10.9.0.3/24 dev near
            ip link add other type veth peer name rest
            ip address add 10.8.0.1/24 dev other
            exec $TRUNKLINE demo --port {port} --client 10.9.0.1 --server {server}"
        ));
        assert_eq!(complaint(&said, 2), apart(port, ["10.9.0.1", server]));
    }
    let output = on_a_link(
        "ip address add 10.9.0.3/24 dev near
        $TRUNKLINE bench lat --listen 10.9.0.1 --port packet --once > /dev/null 2>&1 &
        until ss -Htln | grep -q 18515; do sleep 0.05; done
        exec $TRUNKLINE bench lat --connect 10.9.0.1 --bind 10.9.0.3 --port packet --timeout 1 \
            --json",
    );
    let said = complaint(&output, 1);
    let says = "10.9.0.1 does not answer: nodes on raw frames (packet) do not reach other nodes";
    assert!(said.contains(says), "{said}");
}

/// The kinds that `trunkline ports --json` says work, with their workers.
fn working(output: &Output) -> Vec<(String, Option<u64>)> {
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = found["ports"].as_array().unwrap();
    assert_eq!(all.len(), 4, "{found}");
    let works = all.iter().filter(|kind| kind["works"] == true);
    works
        .map(|kind| {
            let name = kind["port"].as_str().unwrap();
            (name.to_owned(), kind["workers"].as_u64())
        })
        .collect()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn ports_tells_what_works_on_an_address() {
    let output = on_a_link("$TRUNKLINE ports --address 10.9.0.1 --json");
    let names = ["udp", "packet", "xdp", "auto"].map(str::to_owned);
    let all: Vec<_> = names.into_iter().zip([None, None, Some(1), None]).collect();
    assert_eq!(working(&output), all, "{}", text(&output.stderr));
    // Each was let go of, and what a node has is told of.
    let output = on_a_link(
        "$TRUNKLINE ports --address 10.9.0.1 > /dev/null
        $TRUNKLINE serve --address 10.9.0.1 --socket @a --port xdp > /dev/null &
        until $TRUNKLINE run --socket @a true 2> /dev/null; do sleep 0.05; done
        $TRUNKLINE ports --address 10.9.0.1",
    );
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert_eq!(said.matches("is taken by process").count(), 4, "{said}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn ports_are_measured_beside_their_yardsticks_and_nothing_is_left() {
    let output = on_a_link(
        "$TRUNKLINE ports --measure --seconds 0.2 --json
        ! readlink /proc/[0-9]*/exe | grep trunkline >&2",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ports = found["ports"].as_array().unwrap();
    let names: Vec<_> = ports.iter().map(|row| &row["port"]).collect();
    assert_eq!(names, ["udp", "packet", "xdp"]);
    let positive = |figures: &Value| {
        ["rate_ops_per_s", "bw_gbit_per_s", "lat_p50_us"]
            .iter()
            .all(|name| figures[name].as_f64() > Some(0.0))
    };
    for row in ports {
        assert!(positive(&row["trunkline"]), "{row}");
        assert!(positive(&row["yardstick"]), "{row}");
    }
    assert!(positive(&found["tcp"]), "{found}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_kind_of_port_that_cannot_be_measured_does_not_keep_the_others_from_it() {
    let output = on_a_link(
        "setpriv --bounding-set -net_raw \
            $TRUNKLINE ports --measure --seconds 0.1 --port udp --port packet",
    );
    let (said, why) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{why}");
    assert!(said.contains("packet     not measured: "), "{said}");
    assert!(said.contains("half round trip"), "{said}");
    assert!(why.contains("udp, without the transport: bw\n"), "{why}");
}

#[test]
fn who_may_have_no_namespaces_hears_what_it_takes() {
    let mut command = crate::trunkline(&["ports", "--measure"]);
    if rustix::process::geteuid().is_root() {
        let mut less = Command::new("setpriv");
        less.args(["--bounding-set", "-sys_admin"]);
        less.arg(command.get_program()).args(command.get_args());
        command = less;
    }
    let said = complaint(&command.output().unwrap(), 1);
    assert!(
        said.starts_with("cannot make a network namespace: "),
        "{said}"
    );
    assert!(
        said.ends_with(": run it as root (it takes CAP_SYS_ADMIN)"),
        "{said}"
    );
}

#[test]
fn ports_says_what_is_wrong_with_an_address() {
    let output = run(&["ports", "--address", "192.0.2.1"]);
    assert_eq!(output.status.code(), Some(1));
    let (said, why) = (text(&output.stdout), text(&output.stderr));
    let lacks = "192.0.2.1 is not an address of this machine";
    assert_eq!(said.matches(lacks).count(), 4, "{said}");
    assert!(
        why.ends_with("no kind of port works on 192.0.2.1\n"),
        "{why}"
    );
    let own = address().to_string();
    let output = run(&["ports", "--address", &own, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(working(&output)[0].0, "udp");
}

#[test]
fn ports_refuses_an_address_that_no_node_can_have_in_the_words_of_nodes() {
    let own = address().to_string();
    for at in [
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "fe80::1",
    ] {
        let said = complaint(&run(&["ports", "--address", at]), 2);
        let why = said.strip_prefix("--address: ").unwrap();
        let why = why.strip_suffix("; try 'trunkline ports --help'").unwrap();
        let node = run(&["serve", "--socket", "@none", "--address", at]);
        let node = complaint(&node, 1);
        assert!(node.ends_with(why), "{node}: {said}");
    }
    assert!(run(&["ports", "--address", &own]).status.success());
}
