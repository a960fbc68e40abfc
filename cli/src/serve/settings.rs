//! What a service is started with: options of the command line, those of a file, and defaults.

use crate::port::kinds;
use crate::range::Range;
use crate::socket;
use crate::usage::wrong;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use trunkline::PortKind;
use trunkline::service::{Limits, Trusted};

/// Where programs find a service that was not told another place: a name without a file, which
/// belongs to the network namespace as the address does.
const SOCKET: &str = "@trunkline";

const WORKERS: Range<u64> = Range::new(1, 64);
const CONNECTIONS: Range<u64> = Range::new(1, 254);
const QPS: Range<u64> = Range::new(1, 1 << 18);
const COUNT: Range<u64> = Range::new(1, 1 << 20);
const WEIGHTS: Range<u64> = Range::new(1, 64);
const UIDS: Range<u64> = Range::new(0, u32::MAX as u64);
/// Most bytes of a configuration file.
const MOST_TEXT: u64 = 1 << 20;
const BYTES: Range<u64> = Range::new(1 << 16, 1 << 48);
/// What a program takes with a few queues, and with memory that is promoted, fits the least.
const SEGMENTS: Range<u64> = Range::new(8 << 20, 1 << 48);

/// The options, of the command line or of a file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Flags {
    /// Address of the node; may be repeated, for a node at each [default: 127.0.0.1].
    #[arg(long)]
    #[serde(deserialize_with = "one_or_several")]
    address: Vec<IpAddr>,
    #[arg(long, value_name = "PATH")]
    #[arg(
        help = "Socket at which programs attach, one for each address; one that begins with @ is \
                a name without a file [default: @trunkline, then @trunkline1]"
    )]
    #[serde(deserialize_with = "one_or_several")]
    socket: Vec<PathBuf>,
    /// What carries packets [default: udp].
    #[arg(long, value_parser = kinds())]
    #[serde(deserialize_with = "port")]
    port: Option<PortKind>,
    #[arg(long, value_parser = WORKERS.count::<u8>(), allow_negative_numbers = true)]
    #[arg(help = WORKERS.help("Threads that carry packets", " [default: 1]"))]
    workers: Option<u8>,
    #[arg(long, value_parser = CONNECTIONS.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = CONNECTIONS.help("Most shared connections to each peer", " [default: 4]"))]
    connections: Option<u32>,
    #[arg(long = "user", value_name = "UID")]
    #[arg(value_parser = UIDS.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = UIDS.help("Let in this user's programs only", "; may be repeated [default: all]"))]
    #[serde(deserialize_with = "one_or_several")]
    user: Vec<u32>,
    /// Weight of the programs of a user, 1 to 64, where several share a connection; may be repeated
    /// [default: 1].
    #[arg(long = "weight", value_name = "UID=WEIGHT")]
    #[serde(deserialize_with = "one_or_several")]
    weight: Vec<Weight>,
    /// Users whose programs' memory workers reach without a thread in between: the service's own
    /// user and root, all users, or nobody [default: own].
    #[arg(long, value_name = "USERS")]
    trust: Option<Trust>,
    #[arg(long, value_parser = COUNT.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = COUNT.help("Most programs", " [default: 1024]"))]
    programs: Option<u32>,
    #[arg(long, value_parser = COUNT.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = COUNT.help("Most programs of one user", " [default: 512]"))]
    programs_per_user: Option<u32>,
    #[arg(long, value_parser = QPS.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = QPS.help("Most QPs of a program", " [default: 65536]"))]
    qps: Option<u32>,
    #[arg(long, value_parser = COUNT.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = COUNT.help("Most CQs of a program, and SRQs", " [default: 4096]"))]
    cqs: Option<u32>,
    #[arg(long, value_parser = COUNT.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = COUNT.help(
        "Most memory regions of a program, windows and protection domains", " [default: 65536]"
    ))]
    mrs: Option<u32>,
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    #[arg(value_parser = SEGMENTS.bytes())]
    #[arg(help = SEGMENTS.help(
        "Most bytes that a program shares with the service", " [default: 1G]"
    ))]
    #[serde(deserialize_with = "segments")]
    segment_bytes: Option<u64>,
    #[arg(long, value_name = "BYTES", value_parser = BYTES.bytes(), allow_negative_numbers = true)]
    #[arg(help = BYTES.help("Most bytes of other memory of a program", " [default: 1024G]"))]
    #[serde(deserialize_with = "bytes")]
    registered_bytes: Option<u64>,
    #[arg(long, value_parser = COUNT.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = COUNT.help("Most QPs of one user's programs together", " [default: 262144]"))]
    qps_per_user: Option<u32>,
    #[arg(long, value_parser = COUNT.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = COUNT.help("Most CQs of one user's programs, and SRQs", " [default: 16384]"))]
    cqs_per_user: Option<u32>,
    #[arg(long, value_parser = COUNT.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = COUNT.help(
        "Most memory regions of one user's programs, windows and protection domains",
        " [default: 262144]"
    ))]
    mrs_per_user: Option<u32>,
    #[arg(long, value_name = "BYTES", value_parser = BYTES.bytes(), allow_negative_numbers = true)]
    #[arg(help = BYTES.help(
        "Most bytes that one user's programs share with the service", " [default: 16G]"
    ))]
    #[serde(deserialize_with = "bytes")]
    segment_bytes_per_user: Option<u64>,
    #[arg(long, value_name = "BYTES", value_parser = BYTES.bytes(), allow_negative_numbers = true)]
    #[arg(help = BYTES.help(
        "Most bytes of other memory of one user's programs", " [default: 16384G]"
    ))]
    #[serde(deserialize_with = "bytes")]
    registered_bytes_per_user: Option<u64>,
}

/// Who is trusted, as options name it.
#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Trust {
    Own,
    All,
    Nobody,
}

impl From<Trust> for Trusted {
    fn from(trust: Trust) -> Self {
        match trust {
            Trust::Own => Self::Own,
            Trust::All => Self::All,
            Trust::Nobody => Self::Nobody,
        }
    }
}

/// The weight of a user: `1000=8`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(try_from = "String")]
struct Weight {
    uid: u32,
    weight: u32,
}

impl FromStr for Weight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (uid, weight) = text.split_once('=').ok_or("it is no UID=WEIGHT")?;
        let uid = uid
            .parse()
            .map_err(|_| format!("{uid} is no user's number"))?;
        let weight = WEIGHTS.count()(weight)?;
        Ok(Self { uid, weight })
    }
}

impl TryFrom<String> for Weight {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// How a file may say what can be repeated: one value, or a list. What is wrong with a value is
/// told by whoever reads it.
struct OneOrSeveral<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrSeveral<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, or a list of them")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Vec<T>, E> {
        T::deserialize(number.into_deserializer()).map(|one| vec![one])
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        T::deserialize(text.into_deserializer()).map(|one| vec![one])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
        let several = Vec::deserialize(SeqAccessDeserializer::new(list))?;
        match several.is_empty() {
            // Taken for what is not said, `user = []` would let in all.
            true => Err(Error::invalid_length(0, &"one value at least")),
            false => Ok(several),
        }
    }
}

fn one_or_several<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    from.deserialize_any(OneOrSeveral(PhantomData))
}

/// How a file may say a number of bytes.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a number of bytes is wanted, or a text such as \"1G\""
)]
enum Spelled {
    Number(u64),
    Text(String),
}

/// A kind of port by its name.
fn port<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PortKind>, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map(Some).map_err(Error::custom)
}

/// Bytes of segments.
fn segments<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    bytes_in(SEGMENTS, from)
}

/// Bytes of anything else.
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    bytes_in(BYTES, from)
}

/// Bytes as the command line takes them: a number, or a text with a suffix.
fn bytes_in<'de, D: Deserializer<'de>>(
    range: Range<u64>,
    from: D,
) -> Result<Option<u64>, D::Error> {
    let text = match Spelled::deserialize(from)? {
        Spelled::Number(bytes) => bytes.to_string(),
        Spelled::Text(text) => text,
    };
    range.bytes()(&text).map(Some).map_err(Error::custom)
}

/// What a service is started with.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Settings {
    /// The address of each node and the socket of its service; there is one at least.
    pub(super) places: Vec<(IpAddr, PathBuf)>,
    pub(super) port: PortKind,
    pub(super) workers: u8,
    pub(super) connections: u32,
    pub(super) limits: Limits,
}

impl Settings {
    /// Options of the command line go before those of the file, and these before defaults.
    ///
    /// # Errors
    /// The file cannot be read, or says what no option takes.
    pub(super) fn of(file: Option<&Path>, flags: &Flags) -> Result<Self> {
        let file = match file {
            Some(path) => read(path)?,
            None => Flags::default(),
        };
        let mut limits = Limits::default();
        for (.., count) in &COUNTS {
            count.set(&mut limits, flags, &file);
        }
        for size in &SIZES {
            size.set(&mut limits, flags, &file);
        }
        if let Some(trust) = flags.trust.or(file.trust) {
            limits.trusted = trust.into();
        }
        limits.users = first_set(&flags.user, file.user);
        limits.weights = first_set(&flags.weight, file.weight)
            .iter()
            .map(|weight| (weight.uid, weight.weight))
            .collect();
        let weighed: Vec<u32> = limits.weights.iter().map(|(uid, _)| *uid).collect();
        if let Some(uid) = repeated(&weighed) {
            return Err(wrong(format!("--weight {uid}: it is given twice")));
        }
        Ok(Self {
            places: places(
                first_set(&flags.address, file.address),
                first_set(&flags.socket, file.socket),
            )?,
            port: flags.port.clone().or(file.port).unwrap_or_default(),
            workers: flags.workers.or(file.workers).unwrap_or(1),
            connections: flags.connections.or(file.connections).unwrap_or(4),
            limits,
        })
    }
}

/// The option that says a limit, and the limit.
struct Limited<T>(fn(&Flags) -> Option<T>, fn(&mut Limits) -> &mut T);

impl<T> Limited<T> {
    /// The option of the command line goes before that of the file.
    fn set(&self, limits: &mut Limits, flags: &Flags, file: &Flags) {
        let Self(said, limit) = self;
        if let Some(value) = said(flags).or_else(|| said(file)) {
            *limit(limits) = value;
        }
    }
}

/// The limits that are counts, with their names in a file and their ranges.
const COUNTS: [(&str, Range<u64>, Limited<u32>); 8] = [
    (
        "programs",
        COUNT,
        Limited(|of| of.programs, |all| &mut all.clients),
    ),
    (
        "programs-per-user",
        COUNT,
        Limited(|of| of.programs_per_user, |all| &mut all.clients_per_user),
    ),
    ("qps", QPS, Limited(|of| of.qps, |all| &mut all.qps)),
    ("cqs", COUNT, Limited(|of| of.cqs, |all| &mut all.cqs)),
    ("mrs", COUNT, Limited(|of| of.mrs, |all| &mut all.mrs)),
    (
        "qps-per-user",
        COUNT,
        Limited(|of| of.qps_per_user, |all| &mut all.qps_per_user),
    ),
    (
        "cqs-per-user",
        COUNT,
        Limited(|of| of.cqs_per_user, |all| &mut all.cqs_per_user),
    ),
    (
        "mrs-per-user",
        COUNT,
        Limited(|of| of.mrs_per_user, |all| &mut all.mrs_per_user),
    ),
];

/// The limits that are bytes.
const SIZES: [Limited<u64>; 4] = [
    Limited(|of| of.segment_bytes, |all| &mut all.segment_bytes),
    Limited(|of| of.registered_bytes, |all| &mut all.registered_bytes),
    Limited(
        |of| of.segment_bytes_per_user,
        |all| &mut all.segment_bytes_per_user,
    ),
    Limited(
        |of| of.registered_bytes_per_user,
        |all| &mut all.registered_bytes_per_user,
    ),
];

/// What the command line repeats, if anything, and else what the file does.
fn first_set<T: Clone>(flags: &[T], file: Vec<T>) -> Vec<T> {
    match flags {
        [] => file,
        flags => flags.to_vec(),
    }
}

/// The socket of the service at each address.
fn places(mut addresses: Vec<IpAddr>, mut sockets: Vec<PathBuf>) -> Result<Vec<(IpAddr, PathBuf)>> {
    if addresses.is_empty() {
        addresses.push(Ipv4Addr::LOCALHOST.into());
    }
    if sockets.is_empty() {
        let number = |place: usize| {
            if place > 0 {
                place.to_string()
            } else {
                String::new()
            }
        };
        let all = 0..addresses.len();
        sockets = all
            .map(|place| format!("{SOCKET}{}", number(place)).into())
            .collect();
    }
    let (nodes, named) = (addresses.len(), sockets.len());
    if nodes != named {
        let why =
            format!("a socket for each address is needed: {nodes} --address, {named} --socket");
        return Err(wrong(why));
    }
    for socket in &mut sockets {
        *socket = socket::absolute(socket)
            .map_err(|error| wrong(format!("--socket {}: {error}", socket.display())))?;
    }
    let canonical: Vec<_> = addresses.iter().map(IpAddr::to_canonical).collect();
    if let Some(address) = repeated(&canonical) {
        return Err(wrong(format!("--address {address}: it is given twice")));
    }
    if let Some(socket) = repeated(&sockets) {
        let shown = socket.display();
        return Err(wrong(format!("--socket {shown}: it is given twice")));
    }
    Ok(addresses.into_iter().zip(sockets).collect())
}

/// The first that is there twice.
fn repeated<T: PartialEq>(all: &[T]) -> Option<&T> {
    let mut each = all.iter().enumerate();
    each.find_map(|(place, one)| all[..place].contains(one).then_some(one))
}

fn read(path: &Path) -> Result<Flags> {
    let cannot = || format!("cannot read {}", path.display());
    let mut text = Vec::new();
    let file = File::open(path).with_context(cannot)?;
    file.take(MOST_TEXT + 1)
        .read_to_end(&mut text)
        .with_context(cannot)?;
    if text.len() as u64 > MOST_TEXT {
        let why = format!("{}: it is longer than {MOST_TEXT} bytes", path.display());
        return Err(wrong(why));
    }
    let text = String::from_utf8(text).with_context(cannot)?;
    let flags: Flags = toml::from_str(&text).map_err(|error| {
        let text = error.to_string();
        wrong(format!("{}: {}", path.display(), text.trim_end()))
    })?;
    flags.check(path)?;
    Ok(flags)
}

impl Flags {
    /// Checks what the command line checks by itself.
    fn check(&self, path: &Path) -> Result<()> {
        let threads = [
            ("workers", self.workers.map(u32::from), WORKERS),
            ("connections", self.connections, CONNECTIONS),
        ];
        let counts = COUNTS
            .iter()
            .map(|(what, range, Limited(said, _))| (*what, said(self), *range));
        for (what, value, range) in threads.into_iter().chain(counts) {
            let value = value.map(u64::from);
            if let Some(Err(why)) = value.map(|value| range.check(value)) {
                return Err(wrong(format!("{}: {what}: {why}", path.display())));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    fn file(text: &str) -> PathBuf {
        let name = format!("trunkline-serve-{}-{}", std::process::id(), text.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn the_command_line_goes_before_the_file_and_the_file_before_defaults() {
        let path = file(
            "address = \"10.0.0.1\"\nqps = 7\nsegment-bytes = \"16M\"\n\
            registered-bytes = 70000\nuser = 3\ntrust = \"nobody\"\n",
        );
        let flags = Flags {
            qps: Some(9),
            ..Flags::default()
        };
        let settings = Settings::of(Some(&path), &flags).unwrap();
        std::fs::remove_file(path).unwrap();
        let place = (IpAddr::from([10, 0, 0, 1]), PathBuf::from(SOCKET));
        assert_eq!(settings.places, [place]);
        assert_eq!(
            (settings.limits.qps, settings.limits.segment_bytes),
            (9, 16 << 20)
        );
        assert_eq!((settings.limits.users, settings.workers), (vec![3], 1));
        assert_eq!(settings.limits.trusted, Trusted::Nobody);
    }

    #[test]
    fn each_limit_is_the_one_that_is_named() {
        const NAMES: [&str; 12] = [
            "programs",
            "programs-per-user",
            "qps",
            "cqs",
            "mrs",
            "qps-per-user",
            "cqs-per-user",
            "mrs-per-user",
            "segment-bytes",
            "registered-bytes",
            "segment-bytes-per-user",
            "registered-bytes-per-user",
        ];
        // The least that its range has.
        const SEGMENTS: u64 = 8 << 20;
        let said = |from: u64| -> String {
            let value = |(name, value): (&&str, u64)| match *name {
                "segment-bytes" => format!("{name} = {}\n", value + SEGMENTS),
                _ => format!("{name} = {value}\n"),
            };
            NAMES.iter().zip(from..).map(value).collect()
        };
        let shown = |settings: &Settings| {
            let all = &settings.limits;
            let counts = [
                all.clients,
                all.clients_per_user,
                all.qps,
                all.cqs,
                all.mrs,
                all.qps_per_user,
                all.cqs_per_user,
                all.mrs_per_user,
            ];
            let sizes = [
                all.segment_bytes - SEGMENTS,
                all.registered_bytes,
                all.segment_bytes_per_user,
                all.registered_bytes_per_user,
            ];
            let all = counts.map(u64::from).into_iter().chain(sizes);
            all.collect::<Vec<_>>()
        };
        let path = file(&said(70_000));
        let flags: Flags = toml::from_str(&said(80_000)).unwrap();
        let of_file = Settings::of(Some(&path), &Flags::default()).unwrap();
        let of_flags = Settings::of(None, &flags).unwrap();
        let of_both = Settings::of(Some(&path), &flags).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(shown(&of_file), (70_000..70_012).collect::<Vec<_>>());
        assert_eq!(shown(&of_flags), (80_000..80_012).collect::<Vec<_>>());
        assert_eq!(shown(&of_both), shown(&of_flags));
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, named) in [
            ("qsp = 7\n", "qsp"),
            ("qps = 0\n", "qps: 0 is not in"),
            ("workers = 65\n", "workers: 65"),
            ("trust = \"some\"\n", "some"),
            ("address = \"here\"\n", "invalid IP address"),
            ("address = [\"127.0.0.1\", 5]\n", "expected IP address"),
            ("user = \"root\"\n", "expected u32"),
            ("user = []\n", "length 0, expected one value at least"),
            ("address = []\n", "length 0, expected one value at least"),
            ("address = [\"::1\", \"::1\"]\n", "::1: it is given twice"),
            (
                "address = [\"::1\", \"::2\"]\nsocket = \"@a\"\n",
                "2 --address, 1 --socket",
            ),
            (
                "address = [\"::1\", \"::2\"]\nsocket = [\"@a\", \"@b\", \"@a\"]\n",
                "2 --address, 3 --socket",
            ),
            (
                "address = [\"::1\", \"::2\"]\nsocket = [\"/run/it\", \"/run/./it\"]\n",
                "--socket /run/it: it is given twice",
            ),
            ("segment-bytes = \"1X\"\n", "segment-bytes"),
            ("segment-bytes = -1\n", "a number of bytes is wanted"),
            (
                "weight = [\"1=2\", \"7=1\", \"1=3\"]\n",
                "--weight 1: it is given twice",
            ),
            (&"#".repeat(1 << 20 | 1), "it is longer than 1048576 bytes"),
            // Its last character does not end where what is read does.
            (
                &format!("#{}", "\u{e9}".repeat(1 << 20)),
                "it is longer than 1048576 bytes",
            ),
        ] {
            let path = file(text);
            let error = Settings::of(Some(&path), &Flags::default()).unwrap_err();
            std::fs::remove_file(path).unwrap();
            let error = format!("{error:#}");
            assert!(error.contains(named), "{error}");
        }
    }
}
