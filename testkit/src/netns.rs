//! Network namespaces for tests that need the kernel at the other end of a link.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, gettid, move_into_link_name_space, unshare_unsafe,
};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

/// Runs a program in the namespace of this thread, and gives what it says.
pub fn run(words: &str) -> String {
    let (program, arguments) = words.split_once(' ').unwrap_or((words, ""));
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{words}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `ip` in the namespace of this thread, and gives what it says.
pub fn ip(words: &str) -> String {
    run(&format!("ip {words}"))
}

/// Gives this thread a network namespace of its own. That takes privileges: tests that need one are
/// ignored unless asked for, as `cargo xtask test` does where it may.
#[allow(unsafe_code, reason = "unshare(2) may part descriptors, too")]
fn enter_namespace() {
    // SAFETY: concerns this thread only, which began for that; descriptors stay shared.
    let entered = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    entered.expect("a network namespace takes privileges");
    ip("link set lo up");
}

/// The namespace of the neighbour.
#[derive(Debug)]
pub struct Far(String);

impl Far {
    /// Runs a program there, and gives what it says.
    pub fn run(&self, words: &str) -> String {
        run(&format!("nsenter {} {words}", self.0))
    }
}

impl Far {
    /// Does something there, on a thread of its own: what it opens stays in that namespace.
    pub fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let path = self.0.trim_start_matches("--net=");
        let namespace = std::fs::File::open(path).unwrap();
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind).unwrap();
                act()
            });
            there.join().unwrap()
        })
    }
}

/// Runs `test` beside another namespace, which has 10.9.0.2 and fd09::2 at the other end of `near`.
pub fn beside_a_neighbour(test: impl FnOnce(&Far) + Send + 'static) {
    let run = move || {
        enter_namespace();
        ip("link add near type veth peer name far");
        let (ready, wait) = mpsc::channel();
        let (over, until_over) = mpsc::channel::<()>();
        let neighbour = thread::spawn(move || {
            enter_namespace();
            ready.send(gettid()).unwrap();
            let _ = until_over.recv();
        });
        let thread = wait.recv().unwrap();
        ip(&format!("link set far netns {thread}"));
        let far = Far(format!(
            "--net=/proc/{}/task/{thread}/ns/net",
            std::process::id()
        ));
        for words in [
            "addr add 10.9.0.2/24 dev far",
            "addr add fd09::2/64 dev far nodad",
            // The one that it would give itself is of no use for two seconds.
            "link set far addrgenmode none",
            "addr add fe80::2/64 dev far nodad",
            "link set far up",
        ] {
            far.run(&format!("ip {words}"));
        }
        ip("addr add 10.9.0.1/24 dev near");
        ip("addr add fd09::1/64 dev near nodad");
        ip("link set near mtu 4200 up");
        test(&far);
        drop(over);
        neighbour.join().unwrap();
    };
    thread::spawn(run).join().unwrap();
}
