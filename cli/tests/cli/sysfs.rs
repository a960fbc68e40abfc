//! What a program finds under /sys and /dev.

use crate::common::address;
use crate::library::is_there;
use crate::running::User;
use crate::serving::PATIENCE;
use crate::{complaint, text};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;
use trunkline_testkit::programs::{Pair, Program};

/// Runs a script of the shell with its devices prepared in that way, in an environment that
/// `around` makes.
fn run(user: &User, around: &[&str], when: &str, script: &str) -> Output {
    let mut command = user.command("0.2", &["--sysfs", when, "sh", "-c", script]);
    let inner: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_owned())
        .collect();
    if let [first, others @ ..] = around {
        command = Command::new(first);
        user.known_to(&mut command).args(others).args(inner);
    }
    command.output().unwrap()
}

/// Whether a command of the tests' surroundings works here; says so if not.
fn works(words: &[&str]) -> bool {
    let works = Command::new(words[0]).args(&words[1..]).output();
    let works = works.is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("SKIPPED: {words:?} does not work here");
    }
    works
}

/// Whoever makes a mount namespace alone.
const MAY_MOUNT: [&str; 3] = ["unshare", "--mount", "true"];
/// Whoever makes a user namespace.
const MAY_HAVE_USERS: [&str; 3] = ["unshare", "--user", "true"];
/// Without the privilege to mount.
const UNPRIVILEGED: [&str; 3] = [
    "setpriv",
    "--bounding-set=-sys_admin",
    "--inh-caps=-sys_admin",
];

/// Names in a folder.
fn names(folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.collect()
}

/// What a device says in its files, and what all classes are called.
const ASK: &str = "cd /sys/class/infiniband/trunk0 && \
    cat node_type board_id ports/1/gids/0 ports/1/gid_attrs/types/0 ports/1/gid_attrs/ndevs/0 \
        ports/1/pkeys/0 ports/1/state ports/1/link_layer device/numa_node \
        ../../infiniband_verbs/uverbs0/ibdev && \
    cat /sys/class/net/lo/ifindex && ls /sys/class";

/// Prints the GIDs of all devices.
const ALL_GIDS: &str = "cat /sys/class/infiniband/*/ports/1/gids/0";

/// The GID of an IPv4 address, as files say it.
fn gid_of(address: &str) -> String {
    let address: std::net::Ipv4Addr = address.parse().unwrap();
    let segments = address.to_ipv6_mapped().segments();
    segments.map(|group| format!("{group:04x}")).join(":")
}

#[track_caller]
fn check_told(output: &Output, user: &User) {
    let gid = gid_of(&user.address.to_string());
    let told = text(&output.stdout);
    let mut lines = told.lines();
    let first: Vec<_> = lines.by_ref().take(11).collect();
    let expected = [
        "1: CA",
        "trunkline",
        &gid,
        "RoCE v2",
        "lo",
        "0xffff",
        "4: ACTIVE",
        "Ethernet",
        "-1",
        "trunk0",
        "1",
    ];
    assert_eq!(first, expected, "{}", text(&output.stderr));
    let mut classes = names("/sys/class");
    classes.extend(["infiniband", "infiniband_verbs"].map(str::to_owned));
    let told: BTreeSet<_> = lines.map(str::to_owned).collect();
    assert_eq!(told, classes, "all others are there");
}

#[test]
fn who_may_mount_has_files_of_the_device_and_nobody_else_sees_them() {
    if !works(&MAY_MOUNT) {
        return;
    }
    let user = User::new();
    let before = names("/sys/class");
    check_told(&run(&user, &[], "auto", ASK), &user);
    let script = "umask 0777; exec $RUN sh -c 'umask; cd /sys/class/infiniband; stat -c %a \
        trunk0/fw_ver; : > trunk0/new'";
    let output = user.run_by(script);
    assert_eq!(text(&output.stdout), "0777\n644\n");
    assert!(!output.status.success(), "nobody writes there");
    assert_eq!(names("/sys/class"), before);
    let nodes = "test -c /dev/infiniband/uverbs0 -a -r /dev/infiniband/uverbs0 -a \
        -w /dev/infiniband/uverbs0 && : < /dev/infiniband/uverbs0";
    let output = run(&user, &[], "always", nodes);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run(&user, &[], "auto", nodes);
    assert!(!output.status.success(), "unless it is asked for");
    assert!(!Path::new("/dev/infiniband/uverbs0").exists(), "outside");
}

#[test]
fn who_may_not_mount_has_files_in_a_user_namespace_where_that_is_asked_for() {
    let unprivileged = [&UNPRIVILEGED[..], &["true"]].concat();
    if !works(&MAY_HAVE_USERS) || !works(&unprivileged) {
        return;
    }
    let user = User::new();
    check_told(&run(&user, &UNPRIVILEGED, "always", ASK), &user);
    let ids = "id -u && id -g && readlink /proc/self/ns/user";
    let [outside, kept, parted] = [("never", ids), ("auto", ids), ("always", ids)]
        .map(|(when, script)| text(&run(&user, &UNPRIVILEGED, when, script).stdout));
    assert_eq!(outside, kept, "nothing changes unless asked for");
    let ids = |told: &str| told.lines().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(ids(&parted), ids(&outside), "users are what they were");
    assert_ne!(parted, outside);
}

#[test]
fn where_no_namespace_can_be_had_files_that_are_asked_for_are_an_error() {
    let none = "unshare --user --map-root-user sh -c 'echo 0 > /proc/sys/user/max_user_namespaces \
        && exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \"$@\"' -";
    let around = ["sh", "-c", &format!("exec {none} \"$@\""), "-"];
    if !works(&[&around[..], &["true"]].concat()) {
        return;
    }
    let user = User::new();
    let says = complaint(&run(&user, &around, "always", "true"), 1);
    let begins = "cannot prepare files under /sys and /dev: no user namespace can be had here";
    assert!(says.starts_with(begins), "{says}");
    let output = run(&user, &around, "auto", "echo ran");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("ran\n".into(), String::new())
    );
}

#[test]
fn each_device_has_files_and_a_program_in_a_program_has_those_of_its_own() {
    if !works(&MAY_MOUNT) {
        return;
    }
    let user = User::new();
    let other = address().to_string();
    let run = env!("CARGO_BIN_EXE_trunkline");
    let list = "ls /sys/class/infiniband | tr '\\n' ' '";
    let script = format!("{list}; {run} run --address {other} sh -c \"{list}; {ALL_GIDS}\"");
    let mut command = user.command("0.2", &["--address", &other, "sh", "-c", &script]);
    let output = command.output().unwrap();
    let told = text(&output.stdout);
    let ends = format!("trunk0 trunk1 trunk0 {}", gid_of(&other));
    assert_eq!(told.trim_end(), ends, "{}", text(&output.stderr));
}

#[test]
fn unmodified_programs_find_what_they_look_for() {
    if !works(&MAY_MOUNT) || !is_there("ibv_devinfo") {
        return;
    }
    let user = User::new();
    let told = text(&run(&user, &[], "auto", "ibv_devinfo").stdout);
    assert!(told.contains("board_id:\t\t\ttrunkline\n"), "{told}");
    let told = text(&run(&user, &[], "never", "ibv_devinfo").stdout);
    assert!(
        told.contains("trunk0") && !told.contains("board_id"),
        "{told}"
    );
}

#[test]
fn ucx_finds_transports_of_the_device_and_comes_to_an_end() {
    if !works(&MAY_MOUNT) || !is_there("ucx_info") {
        return;
    }
    let output = run(&User::new(), &[], "always", "exec timeout 60 ucx_info -d");
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}{}", text(&output.stderr));
    assert!(told.contains("Device: trunk0:1"), "{told}");
}

/// TCP ports that this test program alone has, below those that the kernel gives by itself.
fn tcp_port(n: u16) -> u16 {
    assert!(n < 5, "each process has 5");
    22_000 + (std::process::id() % 2_000) as u16 * 5 + n
}

#[test]
fn ucx_sends_over_the_transports_that_it_finds() {
    if !works(&MAY_MOUNT) || !is_there("ucx_perftest") {
        return;
    }
    let users = [User::new(), User::new()];
    for (n, (transports, test)) in [
        ("ud", "tag_lat -n 100"),
        ("ud", "tag_bw -n 100 -s 65536"),
        ("rc", "tag_lat -n 100"),
        ("rc", "tag_bw -n 100 -s 65536"),
    ]
    .into_iter()
    .enumerate()
    {
        let port = tcp_port(n as u16);
        let start = |user: &User, options: &str| {
            let line = format!("--sysfs always ucx_perftest -p {port} {options}");
            let words: Vec<_> = line.split_whitespace().collect();
            let mut command = user.command("0.2", &words);
            command.env("UCX_TLS", transports);
            command.env("UCX_NET_DEVICES", "trunk0:1");
            Program::start(command).unwrap()
        };
        let until = Instant::now() + PATIENCE;
        let mut server = start(&users[0], "");
        assert!(server.listens(port, until), "{}", server.wait(until));
        let client = start(&users[1], &format!("127.0.0.1 -t {test}"));
        let ended = Pair { server, client }.wait(until);
        let measured = ended.client.said.contains("Final:");
        assert!(ended.is_good() && measured, "{transports} {test}\n{ended}");
    }
}
