use super::share::PACKETS;
use super::*;
use std::collections::BTreeMap;

/// Connections that always have data, and a port with so much room in each round.
struct Model {
    turns: Schedule,
    /// Connections owe something, always.
    owes: bool,
    room: u32,
    sent: BTreeMap<u32, u32>,
    first: BTreeMap<bool, u32>,
}

impl Model {
    fn new(connections: u32, room: u32) -> Self {
        let mut turns = Schedule::default();
        (0..connections).for_each(|conn| turns.mark_ready(Ready::Conn(conn)));
        Self {
            turns,
            owes: true,
            room,
            sent: BTreeMap::new(),
            first: BTreeMap::new(),
        }
    }

    fn go_first(&mut self, left: &mut u32, managing: bool) {
        while let Some(first) = self.turns.first(managing) {
            if let First::Owed(conn) = first
                && !self.owes
            {
                self.turns.owed(conn, Owed::Nothing);
                continue;
            }
            if *left == 0 {
                match first {
                    First::Management => self.turns.refuse(),
                    First::Owed(conn) => self.turns.owed(conn, Owed::Full),
                }
                continue;
            }
            *left -= 1;
            self.turns.went_first(first);
            let managed = matches!(first, First::Management);
            *self.first.entry(managed).or_default() += 1;
            if let First::Owed(conn) = first {
                self.turns.owed(conn, Owed::Sent);
            }
        }
    }

    fn round(&mut self, managing: bool) {
        let mut left = self.room;
        self.turns.begin();
        if self.turns.is_tight() {
            self.go_first(&mut left, managing);
        }
        for _ in 0..self.turns.len() {
            if self.turns.is_full() {
                return;
            }
            let (who, rest) = self.turns.next().expect("as many as there are");
            let Ready::Conn(conn) = who else {
                unreachable!("none is ibta")
            };
            let (mut share, mut packets) = (rest.unwrap_or(Share::of(1)), 0);
            while left > 0 && !share.is_spent() {
                share.take(1000);
                (left, packets) = (left - 1, packets + 1);
            }
            *self.sent.entry(conn).or_default() += packets;
            let served = if share.is_spent() {
                Served::Again
            } else {
                Served::Full
            };
            self.turns.end(who, served, share, packets.into());
        }
    }
}

#[test]
fn a_turn_that_a_full_port_cut_short_goes_on_and_is_no_longer_than_any_other() {
    for room in [1, 3, 63, 64, 65, 200] {
        let mut model = Model::new(4, room);
        model.owes = false;
        let mut total = 0;
        while total < 4 * PACKETS * 10 {
            model.round(false);
            total = model.sent.values().sum();
        }
        let least = model.sent.values().min().expect("they sent");
        let most = model.sent.values().max().expect("they sent");
        assert_eq!(model.sent.len(), 4, "at {room}");
        assert!(most - least <= PACKETS, "{least} to {most} at {room}");
    }
}

#[test]
fn management_and_what_connections_owe_take_turns_and_get_half_together() {
    for room in [1, 2, 5, 30] {
        let mut model = Model::new(3, room);
        for _ in 0..3000 {
            model.round(true);
        }
        let data: u32 = model.sent.values().sum();
        let [owed, managed] = [false, true].map(|kind| model.first[&kind]);
        assert!(owed + managed <= data, "{owed}, {managed}, {data}");
        assert!(
            10 * (owed + managed) >= 8 * data,
            "{owed}, {managed}, {data}"
        );
        assert!(owed.abs_diff(managed) <= 2, "{owed}, {managed}");
    }
}

#[test]
fn what_owes_goes_first_only_as_long_as_the_port_is_full_and_is_never_forgotten() {
    let mut turns = Schedule::default();
    turns.mark_ready(Ready::Conn(0));
    turns.begin();
    assert_eq!(turns.first(false), None, "one turn does it all");
    turns.refuse();
    turns.begin();
    assert_eq!(turns.first(false), Some(First::Owed(0)));
    turns.owed(0, Owed::Later);
    assert_eq!(turns.first(false), None, "not twice in a round");
    let (who, _) = turns.next().expect("it is ready, too");
    turns.end(who, Served::Done, Share::of(1), 0);
    turns.begin();
    turns.begin();
    assert!(!turns.is_tight());
    assert_eq!(turns.next().map(|(who, _)| who), Some(Ready::Conn(0)));
}

#[test]
fn connections_that_are_gone_leave_no_trace_in_any_list() {
    let mut turns = Schedule::default();
    (0..6).for_each(|conn| turns.mark_ready(Ready::Conn(conn)));
    turns.mark_ready(Ready::Ibta(0));
    turns.refuse();
    turns.begin();
    for owed in [Owed::Later, Owed::Sent, Owed::Nothing, Owed::Full] {
        let Some(First::Owed(conn)) = turns.first(false) else {
            panic!("they are asked in turn");
        };
        turns.owed(conn, owed);
    }
    turns.forget(Ready::Ibta(0));
    for conn in [3, 0, 5, 1, 4, 2] {
        turns.forget(Ready::Conn(conn));
        assert!(!turns.is_owing(conn));
    }
    assert!(turns.is_empty() && turns.links.len() == 0);
    turns.mark_ready(Ready::Conn(3));
    assert_eq!(turns.next(), Some((Ready::Conn(3), None)));
}

#[test]
fn a_connection_that_is_gone_leaves_its_share_to_nobody() {
    let mut turns = Schedule::default();
    (0..2).for_each(|conn| turns.mark_ready(Ready::Conn(conn)));
    turns.begin();
    let (who, _) = turns.next().expect("two are ready");
    let mut share = Share::of(1);
    share.take(1000);
    turns.end(who, Served::Full, share, 1);
    turns.forget(who);
    assert_eq!(turns.next(), Some((Ready::Conn(1), None)));
    turns.forget(Ready::Conn(1));
    assert!(turns.is_empty());
}
