//! Who serves where.

use super::{Process, alone, play};
use crate::common::address;
use std::path::PathBuf;
use std::time::Duration;
use trunkline::service::{Limits, Service};
use trunkline::{Drive, Node, QpAddress};

/// A path that no other test uses, of which nothing is left afterwards.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("trunkline-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for file in [self.0.clone(), self.0.with_extension("lock")] {
            // It may not be there.
            let _ = std::fs::remove_file(file);
        }
    }
}

fn begin(path: &str) -> Process {
    play(&format!("service {}", address()), path)
}

#[test]
fn a_service_follows_one_that_was_killed() {
    let _alone = alone();
    let place = Place::new("follows");
    for _ in 0..3 {
        let mut process = begin(place.path());
        let started: Result<(), String> = process.hear();
        started.unwrap();
        let node = Node::attach(place.path()).unwrap();
        node.create_cq(8).unwrap();
        process.kill();
        assert!(place.0.exists(), "it had no time to remove it");
        assert!(Node::attach(place.path()).is_err());
    }
    let mut process = begin(place.path());
    let started: Result<(), String> = process.hear();
    started.unwrap();
    process.tell(&());
    process.finish();
    assert!(!place.0.exists(), "its file goes with it");
}

#[test]
fn a_second_service_hears_who_serves_there() {
    let _alone = alone();
    let place = Place::new("second");
    let name = format!("@{}", place.path());
    for path in [place.path(), &name] {
        let mut first = begin(path);
        let started: Result<(), String> = first.hear();
        started.unwrap();
        let mut second = begin(path);
        let refused: Result<(), String> = second.hear();
        let why = refused.unwrap_err();
        assert!(why.contains(&format!("process {}", first.pid())), "{why}");
        second.finish();
        Node::attach(path).unwrap().create_cq(8).unwrap();
        first.tell(&());
        first.finish();
    }
}

#[test]
fn of_services_that_start_together_one_wins() {
    let _alone = alone();
    let place = Place::new("together");
    for round in 0..5 {
        let mut all: Vec<_> = (0..4).map(|_| begin(place.path())).collect();
        let said: Vec<Result<(), String>> = all.iter_mut().map(Process::hear).collect();
        let won = said.iter().filter(|said| said.is_ok()).count();
        assert_eq!(won, 1, "round {round}: {said:?}");
        Node::attach(place.path()).unwrap().create_cq(8).unwrap();
        // The next round finds the file of one that was killed.
    }
}

#[test]
fn a_service_that_is_over_as_nobody_used_it_has_left_its_place() {
    let _alone = alone();
    let place = Place::new("over");
    let node = || Node::builder().address(address()).drive(Drive::Threaded);
    let [node, next] = [(); 2].map(|()| node().build().unwrap());
    let service = Service::start(node, place.path(), &Limits::default()).unwrap();
    service.end_when_idle(Duration::ZERO);
    let mut process = play("many 2000", place.path());
    let _addresses: Vec<QpAddress> = process.hear();
    // It leaves enough to destroy, which nobody waits for.
    process.kill();
    while !service.is_over() {
        std::thread::yield_now();
    }
    assert!(!place.0.exists(), "its file is there");
    Service::start(next, place.path(), &Limits::default()).unwrap();
}
