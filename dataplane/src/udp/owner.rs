//! Who holds a UDP or TCP port: what the kernel tells under /proc.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// State of a TCP socket that listens.
const LISTEN: &str = "0A";

/// The holder of a UDP or TCP port, as far as can be found out.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Owner {
    /// Process that has the socket open.
    pub pid: Option<u32>,
    /// Name of that process.
    pub name: Option<String>,
    /// User that made the socket.
    pub uid: Option<u32>,
}

impl Owner {
    /// Looks for the UDP socket that keeps others from `address`.
    pub(super) fn of(address: SocketAddr) -> Self {
        Self::among(["udp", "udp6"], |_| true, address)
    }

    /// Looks for the TCP socket that listens on `address` and keeps others from doing so.
    pub fn of_tcp_listener(address: SocketAddr) -> Self {
        Self::among(["tcp", "tcp6"], |state| state == LISTEN, address)
    }

    fn among(tables: [&str; 2], counts: fn(&str) -> bool, address: SocketAddr) -> Self {
        let tables = tables
            .iter()
            .filter_map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).ok());
        let found = tables
            .into_iter()
            .find_map(|table| find(&table, counts, address));
        let Some((inode, uid)) = found else {
            return Self::default();
        };
        let Some(pid) = holder(inode) else {
            return Self {
                uid: Some(uid),
                ..Self::default()
            };
        };
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        let name = name.map(|name| name.trim_end().to_owned());
        Self {
            pid: Some(pid),
            name,
            uid: Some(uid),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.name, self.uid) {
            (Some(pid), ..) if pid == std::process::id() => f.write_str("this process"),
            (Some(pid), Some(name), _) => write!(f, "process {pid} ({name})"),
            (Some(pid), None, _) => write!(f, "process {pid}"),
            (None, _, Some(0)) => write!(
                f,
                "a socket of root whose process is not visible from here, or of the kernel (the \
                 soft-RoCE module takes port 4791)"
            ),
            (None, _, Some(uid)) => {
                write!(
                    f,
                    "a socket of user {uid} whose process is not visible from here"
                )
            }
            (None, _, None) => write!(f, "a socket that is not visible from here"),
        }
    }
}

/// Returns inode and user of the socket in `table` (the format of /proc/net/udp and tcp,
/// proc_net_udp(5)) that keeps others from `address`, of those whose state counts.
fn find(table: &str, counts: fn(&str) -> bool, address: SocketAddr) -> Option<(u64, u32)> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let local = parse(fields.nth(1)?)?;
        let state = fields.nth(1)?;
        let uid = fields.nth(3)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        let (theirs, ours) = (local.ip(), address.ip());
        // A socket on all IPv6 addresses may hold all IPv4 ones too.
        let clash = theirs == ours
            || theirs == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            || (theirs.is_ipv4() == ours.is_ipv4()
                && (theirs.is_unspecified() || ours.is_unspecified()));
        (local.port() == address.port() && clash && counts(state)).then_some((inode, uid))
    })
}

/// An address of the table: hexadecimal words in host order, a colon, the port.
fn parse(field: &str) -> Option<SocketAddr> {
    let (address, port) = field.split_once(':')?;
    let word = |i: usize| {
        let digits = address.get(i * 8..i * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut octets = [0; 16];
            for (i, octets) in octets.chunks_exact_mut(4).enumerate() {
                octets.copy_from_slice(&word(i)?);
            }
            Ipv6Addr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(
        address,
        u16::from_str_radix(port, 16).ok()?,
    ))
}

/// A process that has the socket with this inode open.
fn holder(inode: u64) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return false;
        };
        files.flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str())
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_are_found_in_the_kernels_table() {
        let table = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
  100: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2
  101: 00000000:0044 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 17 2
";
        let at = |text: &str| find(table, |_| true, text.parse().unwrap());
        assert_eq!(at("127.0.0.1:4791"), Some((4711, 1000)));
        assert_eq!(at("0.0.0.0:4791"), Some((4711, 1000)));
        assert_eq!(at("10.0.0.1:68"), Some((17, 0)));
        assert_eq!(at("127.0.0.2:4791"), None);
        assert_eq!(at("127.0.0.1:4792"), None);
        let none = find(
            table,
            |state| state == LISTEN,
            "127.0.0.1:4791".parse().unwrap(),
        );
        assert_eq!(none, None);
    }

    #[test]
    fn a_socket_that_listens_is_found_and_its_connections_are_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = std::net::TcpStream::connect(address).unwrap();
        let (_other, _) = listener.accept().unwrap();
        let pid = Some(std::process::id());
        assert_eq!(Owner::of_tcp_listener(address).pid, pid);
        let ours = stream.local_addr().unwrap();
        assert_eq!(Owner::of_tcp_listener(ours), Owner::default());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn ipv6_addresses_of_the_table_are_read() {
        let local = parse("000080FE00000000FF005450B6BC46FE:12B7").unwrap();
        assert_eq!(local, "[fe80::5054:ff:fe46:bcb6]:4791".parse().unwrap());
        assert_eq!(parse("0100007F"), None);
        assert_eq!(parse("0100007:12B7"), None);
        assert_eq!(parse("é0000007:12B7"), None);
    }
}
