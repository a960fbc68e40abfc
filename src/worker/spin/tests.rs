//! Looking and sleeping on a clock of the tests.

use super::*;

const US: i64 = 1_000;
const MS: i64 = 1_000 * US;

fn after(begin: Instant, at_ns: i64) -> Instant {
    begin + Duration::from_nanos(at_ns as u64)
}

/// One that waits for messages, on a machine whose processors take `WAKE_NS` to be woken.
struct End {
    account: Account,
    begin: Instant,
    /// Time spent on looking.
    looked_ns: i64,
}

const WAKE_NS: i64 = 75 * US;
const LOOK_NS: i64 = US / 2;

impl End {
    fn new() -> Self {
        Self {
            account: Account::default(),
            begin: Instant::now(),
            looked_ns: 0,
        }
    }

    /// It has nothing to do from `now_ns` on; when it takes up the message that comes at `at_ns`.
    fn wait(&mut self, now_ns: i64, at_ns: i64) -> i64 {
        let mut looked_at = now_ns;
        let taken_at = loop {
            if looked_at >= at_ns {
                break looked_at;
            }
            if !self.account.looks_again(after(self.begin, looked_at)) {
                break at_ns + WAKE_NS;
            }
            looked_at += LOOK_NS;
        };
        self.looked_ns += looked_at - now_ns;
        self.account.worked(after(self.begin, taken_at));
        taken_at
    }

    /// Takes messages that come `gap_ns` apart. Which part of the time it looked, in thousandths.
    fn looks(&mut self, gap_ns: i64, count: i64) -> i64 {
        for message in 0..count {
            let taken_at = self.wait(message * gap_ns, (message + 1) * gap_ns);
            assert!(taken_at < (message + 2) * gap_ns);
        }
        1000 * self.looked_ns / (count * gap_ns)
    }
}

/// Two ends that answer each other, after `works_ns` each. The time of the trip that begins at
/// `after_ns`.
fn trip(works_ns: i64, after_ns: i64) -> i64 {
    const FLIGHT_NS: i64 = 2 * US;
    let mut ends = [End::new(), End::new()];
    let (mut idle_since, mut begin) = ([0; 2], 0);
    let mut arrives_at = 0;
    loop {
        for (end, idle_since) in ends.iter_mut().zip(&mut idle_since) {
            let answered_at = end.wait(*idle_since, arrives_at) + works_ns;
            *idle_since = answered_at;
            arrives_at = answered_at + FLIGHT_NS;
        }
        if begin >= after_ns {
            return arrives_at - begin;
        }
        begin = arrives_at;
    }
}

#[test]
fn two_that_sleep_come_to_look() {
    for works in [1, 5, 10, 20] {
        let (first, later) = (trip(works * US, US), trip(works * US, 20 * MS));
        assert!(first > 2 * WAKE_NS);
        assert!(later < 2 * works * US + 6 * US, "{works}: {later} ns");
    }
}

#[test]
fn where_waits_are_long_a_small_part_of_the_time_is_spent_on_looking() {
    for gap in [300 * US, MS, 5 * MS, 100 * MS] {
        let part = End::new().looks(gap, 1000);
        assert!(part <= 1000 / SHARE + 1, "{gap} ns apart: {part} of 1000");
    }
}

#[test]
fn a_while_of_short_waits_pays_for_a_few_long_looks_and_no_more() {
    let mut end = End::new();
    end.account.balance_ns = LONGEST_NS;
    end.looks(10 * US, 100_000);
    end.looked_ns = 0;
    end.begin += Duration::from_secs(1);
    end.looks(MS, 100);
    let paid = MOST_NS + 100 * MS / SHARE + LONGEST_NS;
    assert!(
        (MOST_NS..=paid).contains(&end.looked_ns),
        "{} ns",
        end.looked_ns
    );
}

#[test]
fn it_looks_for_a_bounded_time_and_not_again_until_there_was_work() {
    let (mut account, begin) = (Account::default(), Instant::now());
    account.balance_ns = LONGEST_NS;
    assert!(account.looks_again(begin));
    assert!(account.looks_again(after(begin, LONGEST_NS - 1)));
    for at in [LONGEST_NS, LONGEST_NS + 1, 1000 * MS, 100_000 * MS] {
        assert!(!account.looks_again(after(begin, at)));
    }
    account.worked(after(begin, 100_001 * MS));
    // All that time pays for one look.
    assert!(account.looks_again(after(begin, 100_002 * MS)));
    assert!(!account.looks_again(after(begin, 100_002 * MS + LONGEST_NS)));
    account.worked(after(begin, 100_003 * MS));
    assert!(!account.looks_again(after(begin, 100_003 * MS)));
}

/// Others compute all the time, and give the processor back after 3 ms. Meanwhile something has
/// come, or not.
#[test]
fn where_others_need_the_processor_it_sleeps() {
    for finds in [false, true] {
        let (mut account, begin) = (Account::default(), Instant::now());
        account.balance_ns = MOST_NS;
        let (mut now_ns, mut given_ns) = (0, 0);
        while now_ns < 10_000 * MS {
            while account.looks_again(after(begin, now_ns)) {
                now_ns += 3 * MS;
                given_ns += 3 * MS;
                account.offered(Duration::from_millis(3));
                if finds {
                    break;
                }
            }
            now_ns += MS;
            account.worked(after(begin, now_ns));
        }
        assert!(given_ns <= now_ns / 100, "{finds}: {given_ns} ns");
    }
}

/// The peer has the same processor, and answers within the time that it is offered.
#[test]
fn who_gets_its_answer_while_others_have_the_processor_looks_on() {
    let (mut account, begin) = (Account::default(), Instant::now());
    account.balance_ns = LONGEST_NS;
    let mut now_ns = 0;
    for _ in 0..1000 {
        assert!(account.looks_again(after(begin, now_ns)));
        now_ns += 40 * US;
        account.offered(Duration::from_micros(40));
        account.worked(after(begin, now_ns));
    }
}
