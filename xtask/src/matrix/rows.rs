//! The rows: a program, its options, and what is to become of it.

/// What a row is to show.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Expect {
    /// Server and client end well, and the client prints this.
    Result(&'static str),
    /// The program runs alone, ends well and prints this.
    Alone(&'static str),
    /// One of both says this and ends by itself, with an error: what it asks for is not offered.
    Refusal(&'static str),
}

/// A program with options.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) program: &'static str,
    pub(super) options: String,
    pub(super) expect: Expect,
    /// Part of an ordinary run.
    pub(super) in_cut: bool,
}

/// Who has the other end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Peer {
    Ours,
    /// Soft-RoCE in an emulated guest, which carries some 15 MB/s.
    Guest,
}

impl Peer {
    /// Messages that a program sends on each RC QP to see how many it can.
    const fn bulk(self) -> u32 {
        match self {
            Self::Ours => 1000,
            Self::Guest => 200,
        }
    }

    const fn cut(self) -> &'static [&'static str] {
        match self {
            Self::Ours => &CUT,
            Self::Guest => &GUEST_CUT,
        }
    }
}

impl Row {
    fn new(program: &'static str, options: impl Into<String>, expect: Expect) -> Self {
        Self {
            program,
            options: options.into(),
            expect,
            in_cut: false,
        }
    }

    /// Whether it is of interest who has the other end.
    const fn has_peer(&self) -> bool {
        matches!(self.expect, Expect::Result(_))
    }

    /// What it is called in the table.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.program, self.options)
            .trim_end()
            .to_owned()
    }

    /// Whether its messages take long: all sizes up to 8 MiB.
    pub(super) fn is_long(&self) -> bool {
        self.options.split(' ').any(|option| option == "-a")
    }

    /// The command line of the server, or of the client of `server`.
    pub(super) fn line(&self, device: &Device<'_>, port: u16, server: Option<&str>) -> String {
        let Self {
            program, options, ..
        } = self;
        let Device { name, gid_index } = device;
        let place = match *program {
            "ibv_devices" => String::new(),
            "ibv_devinfo" => format!("-d {name}"),
            pingpong if pingpong.starts_with("ibv_") => {
                format!("-d {name} -g {gid_index} -p {port}")
            }
            _ => format!("-d {name} -x {gid_index} -p {port} -F"),
        };
        let server = server.unwrap_or_default();
        let words = [program, place.as_str(), options, server];
        let words = words.into_iter().filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// The device of an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device<'a> {
    pub(super) name: &'a str,
    pub(super) gid_index: u32,
}

/// What the pingpongs and perftest print with their result.
const ROUNDS: Expect = Expect::Result("iters in");
const TABLE: Expect = Expect::Result("#bytes");

/// In an ordinary run: one of each kind.
const CUT: [&str; 33] = [
    "ibv_devices",
    "ibv_devinfo -v",
    "ibv_rc_pingpong -c -n 200 -s 4096",
    "ibv_rc_pingpong -c -n 30 -s 1048576 -e",
    "ibv_rc_pingpong -c -n 200 -N",
    "ibv_rc_pingpong -o",
    "ibv_rc_pingpong -c -n 200 -t",
    "ibv_uc_pingpong -c -n 200 -s 4096 -e",
    "ibv_ud_pingpong -c -n 200 -s 1024",
    "ibv_srq_pingpong -c -n 200 -s 4096 -e",
    "ibv_srq_pingpong -c -n 200 -q 64",
    "ib_send_bw -c RC -n 1000",
    "ib_send_bw -c RC -n 1000 -e",
    "ib_send_bw -c RC -n 1000 -b -q 4",
    "ib_send_bw -c RC -n 20 -a",
    "ib_send_bw -c RC -n 1000 --use-srq -q 4",
    "ib_send_bw -c UC -n 200 -s 4096",
    "ib_send_bw -c UD -n 200 -s 2048",
    "ib_send_bw -c XRC",
    "ib_send_lat -c RC -n 500 -s 64",
    "ib_send_lat -c RC -n 500 -e",
    "ib_send_lat -c UD -n 500 -s 64",
    "ib_write_bw -c RC -n 1000",
    "ib_write_bw -c RC -n 1000 -b -q 4",
    "ib_write_bw -c RC -n 1000 --use_old_post_send",
    "ib_write_bw -c UC -n 200 -s 4096",
    "ib_write_lat -c RC -n 500 -s 64",
    "ib_read_bw -c RC -n 1000",
    "ib_read_bw -c RC -n 1000 -b -q 4",
    "ib_read_lat -c RC -n 500 -e",
    "ib_atomic_bw -A FETCH_AND_ADD -n 1000 -q 4",
    "ib_atomic_lat -A CMP_AND_SWAP -n 500 -e",
    "ib_read_bw --odp",
];

/// In an ordinary run against soft-RoCE.
const GUEST_CUT: [&str; 7] = [
    "ibv_rc_pingpong -c -n 200 -s 4096",
    "ibv_uc_pingpong -c -n 200 -s 4096 -e",
    "ibv_ud_pingpong -c -n 200 -s 1024",
    "ib_send_lat -c RC -n 500 -e",
    "ib_write_bw -c RC -n 200 -s 4096",
    "ib_read_lat -c RC -n 500 -e",
    "ib_atomic_lat -A FETCH_AND_ADD -n 500",
];

/// All rows with a peer.
pub(super) fn rows(peer: Peer) -> Vec<Row> {
    let mut rows = vec![
        Row::new("ibv_devices", "", Expect::Alone("trunk0")),
        Row::new("ibv_devinfo", "-v", Expect::Alone("PORT_ACTIVE")),
    ];
    pingpongs(&mut rows, peer);
    for (program, connections) in PERFTEST {
        for connection in connections {
            perftest(&mut rows, program, connection, peer);
        }
    }
    refusals(&mut rows);
    for row in &mut rows {
        let name = row.name();
        row.in_cut = peer.cut().contains(&name.as_str());
    }
    rows.retain(|row| row.has_peer() || peer == Peer::Ours);
    rows
}

fn pingpongs(rows: &mut Vec<Row>, peer: Peer) {
    for program in [
        "ibv_rc_pingpong",
        "ibv_uc_pingpong",
        "ibv_ud_pingpong",
        "ibv_srq_pingpong",
    ] {
        let mut add = |options: String| rows.push(Row::new(program, options, ROUNDS));
        // A datagram is one packet.
        let most = match program {
            "ibv_ud_pingpong" => 2048,
            _ => 4096,
        };
        for size in [1, 64, 1024, most] {
            add(format!("-c -n 200 -s {size}"));
            add(format!("-c -n 200 -s {size} -e"));
        }
        if program != "ibv_ud_pingpong" {
            for (size, count) in [(65_536, 100), (1_048_576, 30)] {
                add(format!("-c -n {count} -s {size}"));
                add(format!("-c -n {count} -s {size} -e"));
            }
            add("-c -n 200 -m 256".to_owned());
            add("-c -n 200 -m 4096".to_owned());
        }
        match program {
            "ibv_rc_pingpong" => {
                add("-c -n 200 -N".to_owned());
                // soft-RoCE has no times of completions.
                if peer == Peer::Ours {
                    add("-c -n 200 -t".to_owned());
                }
            }
            "ibv_srq_pingpong" => {
                add("-c -n 200 -q 64".to_owned());
                add("-c -n 200 -q 64 -e".to_owned());
            }
            _ => {}
        }
        add("-c -n 200 -r 16".to_owned());
    }
}

const PERFTEST: [(&str, &[&str]); 8] = [
    ("ib_send_bw", &["RC", "UC", "UD"]),
    ("ib_send_lat", &["RC", "UC", "UD"]),
    ("ib_write_bw", &["RC", "UC"]),
    ("ib_write_lat", &["RC", "UC"]),
    ("ib_read_bw", &["RC"]),
    ("ib_read_lat", &["RC"]),
    ("ib_atomic_bw", &["RC"]),
    ("ib_atomic_lat", &["RC"]),
];

/// All rows of a program of perftest with one kind of QP.
///
/// The numbers of messages are multiples of 100: where each 100th request is signaled, this program
/// waits for ever for the completions of others.
fn perftest(rows: &mut Vec<Row>, program: &'static str, connection: &str, peer: Peer) {
    let is_bw = program.ends_with("_bw");
    let is_atomic = program.starts_with("ib_atomic");
    let is_reliable = connection == "RC";
    let choices: &[&str] = if is_atomic {
        &["-A FETCH_AND_ADD", "-A CMP_AND_SWAP"]
    } else {
        &[""]
    };
    for choice in choices {
        let start = if is_atomic {
            (*choice).to_owned()
        } else {
            format!("-c {connection}")
        };
        let count = if is_bw && is_reliable {
            peer.bulk()
        } else if is_bw {
            // No more than are in receives posted ahead: nothing stops a sender that is faster.
            200
        } else {
            500
        };
        let mut add = |count: u32, options: &str| {
            let options = format!("{start} -n {count} {options}");
            rows.push(Row::new(program, options.trim_end(), TABLE));
        };
        for options in common(program, connection) {
            // Soft-RoCE whose timer has run out sends other bytes under the numbers that it sends
            // again, and its timer does run out here. That is refused as it should be.
            if peer == Peer::Guest && options.contains("-b -q") {
                continue;
            }
            let options = match (peer, program, options) {
                // 16 READs of 64 KiB on each QP wait before a slow guest for longer than its timer,
                // and it asks for all of them again for ever (docs/known-defects.md).
                (Peer::Guest, "ib_read_bw", "-q 16") => "-q 16 -o 1",
                _ => options,
            };
            add(count, options);
        }
        if !is_atomic {
            for size in sizes(connection, is_bw) {
                add(count, size);
            }
            // Of large messages UC loses some where the receiver is not the faster one, and these
            // programs wait for what is lost. A datagram is one packet.
            if is_reliable {
                add(20, "-a");
            }
        }
    }
}

/// Options of a program that do not say how large messages are.
fn common(program: &str, connection: &str) -> Vec<&'static str> {
    let (is_bw, is_send) = (program.ends_with("_bw"), program.starts_with("ib_send"));
    let is_write = program.starts_with("ib_write");
    let mut all = Vec::new();
    let unsized_bulk = is_bw && connection != "RC";
    if !unsized_bulk {
        all.extend(["", "--use_old_post_send"]);
        // WRITEs raise no events at their target, and these programs refuse to wait for them.
        if !is_write {
            all.push("-e");
        }
    }
    if is_bw && connection == "RC" {
        all.extend(["-b", "-q 4", "-b -q 4", "-q 16", "-l 4", "-t 8", "-m 1024"]);
        if !is_write {
            // Not "-e -b -q 4": for each event it takes fewer completions than the CQ may hold, and
            // stands still with the others there once it was late.
            all.extend(["-e -b", "-e -q 4"]);
        }
        if is_send {
            all.extend(["-r 16 -t 8", "--use-srq -q 4", "--use-srq -e"]);
        }
    }
    if connection == "RC" && (is_send || is_write) {
        all.push(if is_bw { "-I 64 -s 64" } else { "-I 0 -s 64" });
    }
    if unsized_bulk && is_send {
        all.push("-s 1024 -e");
    }
    if program.starts_with("ib_read") || program.starts_with("ib_atomic") {
        all.push("-o 4");
    }
    all
}

/// Options with the size of messages.
fn sizes(connection: &str, is_bw: bool) -> Vec<&'static str> {
    let mut all = vec!["-s 1", "-s 64"];
    match (connection, is_bw) {
        ("UD", _) => all.push("-s 2048"),
        (_, false) => all.extend(["-s 4096", "-s 65536"]),
        ("RC", true) => all.extend(["-s 4096", "-s 1048576"]),
        // What the receiver's socket holds, since nothing stops the sender.
        (_, true) => all.push("-s 4096"),
    }
    if is_bw && connection != "RC" {
        all.extend(["-s 1024 -b", "-s 1024 -q 4"]);
    }
    if connection != "RC" || !is_bw {
        all.push("-s 1024 --use_old_post_send");
    }
    all
}

/// What is not offered, and how programs say so.
fn refusals(rows: &mut Vec<Row>) {
    for (program, options, words) in [
        ("ibv_rc_pingpong", "-o", "ODP"),
        ("ibv_rc_pingpong", "-O", "ODP"),
        ("ibv_rc_pingpong", "-j", "dm"),
        ("ib_send_bw", "-c XRC", "XRC"),
        ("ib_write_bw", "-c XRC", "XRC"),
        ("ib_read_bw", "--odp", "failed to create mr"),
    ] {
        rows.push(Row::new(program, options, Expect::Refusal(words)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_cut_names_rows_that_there_are() {
        for peer in [Peer::Ours, Peer::Guest] {
            let names: BTreeSet<_> = rows(peer).iter().map(Row::name).collect();
            for name in peer.cut() {
                assert!(names.contains(*name), "{name}");
            }
        }
    }

    #[test]
    fn no_row_stands_twice() {
        for peer in [Peer::Ours, Peer::Guest] {
            let mut names = BTreeSet::new();
            for row in rows(peer) {
                assert!(names.insert(row.name()), "{}", row.name());
            }
        }
    }

    #[test]
    fn an_end_has_the_options_of_its_device() {
        let row = Row::new("ib_send_bw", "-c RC", TABLE);
        let device = Device {
            name: "rxe0",
            gid_index: 1,
        };
        let line = row.line(&device, 4000, Some("10.0.0.1"));
        assert_eq!(line, "ib_send_bw -d rxe0 -x 1 -p 4000 -F -c RC 10.0.0.1");
        let row = Row::new("ibv_rc_pingpong", "-e", ROUNDS);
        let line = row.line(&device, 4000, None);
        assert_eq!(line, "ibv_rc_pingpong -d rxe0 -g 1 -p 4000 -e");
    }
}
