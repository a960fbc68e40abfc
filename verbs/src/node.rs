//! The nodes of this program, one for each device that it sees.
//!
//! `TRUNKLINE_SOCKET` names the socket of a service that carries a node, or several with commas
//! between them. Else `TRUNKLINE_ADDRESS` so names IP addresses of nodes inside the program, driven
//! by threads of their own, and `TRUNKLINE_PORT` what carries their packets. `TRUNKLINE_PROMOTE`
//! says which memory becomes shared with a service: never, auto or always.

use crate::answer::{Errno, INVALID};
use crate::complaint::{self, complain};
use crate::registry::Registry;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use trunkline::service::several;
use trunkline::{AttachOptions, Down, Error, Node, PortKind, Promotion};

/// Names of the variables that say where the node is.
const SOCKET: &str = "TRUNKLINE_SOCKET";
const ADDRESS: &str = "TRUNKLINE_ADDRESS";
/// Name of the variable that says what carries the packets of a node inside the program.
const PORT: &str = "TRUNKLINE_PORT";
/// Name of the variable that says which memory is promoted.
const PROMOTE: &str = "TRUNKLINE_PROMOTE";
/// How long the node goes on for what its peers are owed when the program closes it or exits.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long the thread that tells events sleeps at most. It is woken for each event.
const NAP: Duration = Duration::from_secs(3600);

/// Most devices of a program: those that are named after so many are not seen.
pub(crate) const MAX_DEVICES: usize = 16;

/// The nodes that the program has opened, each at the number of its device.
static OPEN: Mutex<[Weak<OpenNode>; MAX_DEVICES]> =
    Mutex::new([const { Weak::new() }; MAX_DEVICES]);

/// A node with who hears of its events.
pub(crate) struct OpenNode {
    pub(crate) node: Node,
    pub(crate) registry: Arc<Registry>,
    /// Tells the events.
    teller: Option<JoinHandle<()>>,
    obituary: Arc<Obituary>,
}

/// Where a node of this program is or will be.
#[derive(Debug, PartialEq)]
enum Place {
    Service(PathBuf),
    Inside(IpAddr),
}

/// Where the nodes are, each at the number of its device; none: the program is to see no device.
///
/// # Errors
/// EINVAL: what is set is no address.
fn places() -> Result<Vec<Place>, Errno> {
    places_of(set(SOCKET), set(ADDRESS))
}

fn places_of(sockets: Option<OsString>, addresses: Option<OsString>) -> Result<Vec<Place>, Errno> {
    let names_some = |list: &OsString| several(list).next().is_some();
    if let Some(sockets) = sockets.filter(names_some) {
        let sockets = several(&sockets).take(MAX_DEVICES);
        return Ok(sockets.map(|at| Place::Service(at.into())).collect());
    }
    let addresses = addresses.unwrap_or_default();
    let inside = |(device, at)| parsed(device, at).map(Place::Inside);
    let addresses = several(&addresses).take(MAX_DEVICES);
    addresses.enumerate().map(inside).collect()
}

/// Where the node of a device is.
///
/// # Errors
/// ENODEV: there is no such device.
fn place(device: usize) -> Result<Place, Errno> {
    let mut places = places()?;
    if device >= places.len() {
        return Err(Errno(libc::ENODEV));
    }
    Ok(places.swap_remove(device))
}

/// What a variable is set to. One that is empty counts as not set.
fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn parsed(device: usize, address: &OsStr) -> Result<IpAddr, Errno> {
    let text = address.to_string_lossy();
    text.parse().map_err(|_| {
        complain(device, &format!("{ADDRESS}: '{text}' is no IP address"));
        INVALID
    })
}

/// How the program attaches to a service.
///
/// # Errors
/// EINVAL: what is set is none of the words.
fn options(device: usize, promote: Option<OsString>) -> Result<AttachOptions, Errno> {
    let word = promote.as_deref().map(OsStr::to_string_lossy);
    let promotion = match word.as_deref() {
        None => Promotion::default(),
        Some("never") => Promotion::Never,
        Some("auto") => Promotion::Auto,
        Some("always") => Promotion::Always,
        Some(other) => {
            complain(
                device,
                &format!("{PROMOTE}: '{other}': never, auto or always"),
            );
            return Err(INVALID);
        }
    };
    Ok(AttachOptions { promotion })
}

/// What carries the packets of a node inside the program.
///
/// # Errors
/// EINVAL: what is set is no kind of port.
fn port(device: usize, kind: Option<OsString>) -> Result<PortKind, Errno> {
    let Some(kind) = kind else {
        return Ok(PortKind::default());
    };
    kind.to_string_lossy().parse().map_err(|why| {
        complain(device, &format!("{PORT}: {why}"));
        INVALID
    })
}

/// How many devices the program is to see.
///
/// # Errors
/// EINVAL: what is set is no address.
pub(crate) fn count() -> Result<usize, Errno> {
    Ok(places()?.len())
}

/// GUID of the node that a device of the program has or will have.
///
/// # Errors
/// There is no such device, what is set is no address, or nobody serves there.
pub(crate) fn guid(device: usize) -> Result<u64, Errno> {
    Ok(match place(device)? {
        Place::Inside(address) => guid_at(address),
        Place::Service(_) => OpenNode::get(device)?.node.device_attributes()?.node_guid,
    })
}

/// GUID of the node at `address`: an EUI-64 of those that everybody may give out, made from the
/// address. So it is known before the node is there, and the same at each start.
fn guid_at(address: IpAddr) -> u64 {
    /// The bit that says "given out locally".
    const LOCAL: u64 = 1 << 57;
    /// The bit that says "of a group".
    const GROUP: u64 = 1 << 56;
    let (high, low) = match address {
        // As interface identifiers that hold an IPv4 address: RFC 5214.
        IpAddr::V4(address) => (0, 0x0000_5efe << 32 | u64::from(u32::from(address))),
        IpAddr::V6(address) => {
            let bits = u128::from(address);
            ((bits >> 64) as u64, bits as u64)
        }
    };
    (high ^ low) & !GROUP | LOCAL
}

fn open_nodes() -> MutexGuard<'static, [Weak<OpenNode>; MAX_DEVICES]> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenNode {
    /// The node of a device, which is opened if it is not yet.
    ///
    /// # Errors
    /// ENODEV: there is no such device. The node cannot have its address, or nobody serves there.
    pub(crate) fn get(device: usize) -> Result<Arc<Self>, Errno> {
        let mut open = open_nodes();
        let place = place(device)?;
        let open = &mut open[device];
        // One that is down serves nobody who comes now: its service is gone, or this is a child of
        // the process that it works in. What was made with it may keep it for ever.
        let working = open
            .upgrade()
            .filter(|node| node.node.health().down.is_none());
        if let Some(node) = working {
            return Ok(node);
        }
        let node = match place {
            Place::Service(socket) => Node::attach_with(socket, &options(device, set(PROMOTE))?)
                .inspect_err(|error| complain(device, &complaint::of_service(error)))?,
            Place::Inside(address) => {
                let port = port(device, set(PORT))?;
                let node = Node::builder().address(address).guid(guid_at(address));
                node.port(port)
                    .build()
                    .inspect_err(|error| complain(device, &complaint::of_node(error)))?
            }
        };
        let opened = Arc::new(Self::with(device, node)?);
        *open = Arc::downgrade(&opened);
        end_with_the_program();
        Ok(opened)
    }

    fn with(device: usize, node: Node) -> Result<Self, Errno> {
        let registry = Arc::new(Registry::default());
        let (told, of) = (Arc::clone(&registry), node.clone());
        let obituary = Arc::new(Obituary::new(device));
        let last = Arc::clone(&obituary);
        let teller = std::thread::Builder::new().name("trunkline-events".into());
        let teller = teller.spawn(move || {
            tell_events(&of, &told);
            last.say(&of);
        })?;
        Ok(Self {
            node,
            registry,
            teller: Some(teller),
            obituary,
        })
    }

    /// Does some of the node's work in a thread of the program that has found nothing to do, and
    /// gives way to others if there is none: programs poll CQs without pause, and on a machine with
    /// few cores the threads that they wait for would get none.
    pub(crate) fn help(&self) {
        // An error is one of the node's threads, too, which see to it.
        if !self.node.poll().unwrap_or(false) {
            std::thread::yield_now();
        }
    }

    /// Whether this process is a child of the one that opened the node: nothing of it is touched
    /// then, and its threads are not there.
    fn is_forked(&self) -> bool {
        self.node.health().down == Some(Down::Forked)
    }

    /// Whether it is this process's.
    ///
    /// # Errors
    /// EPERM: this process is a child of the one that opened it.
    pub(crate) fn check_own(&self) -> Result<(), Errno> {
        match self.is_forked() {
            true => Err(Errno(libc::EPERM)),
            false => Ok(()),
        }
    }

    /// Whether it works.
    ///
    /// # Errors
    /// EIO: it is down. EPERM: this process is a child of the one that opened it.
    pub(crate) fn check_up(&self) -> Result<(), Errno> {
        match self.node.health().down {
            Some(down) => Err(Error::from(down).into()),
            None => Ok(()),
        }
    }

    /// Whether the service that carried it is gone.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self.node.health().down, Some(Down::Service { .. }))
    }

    /// Ends the node when its peers have what they are owed.
    fn end(&self) {
        if self.is_forked() {
            return;
        }
        self.registry.silence();
        // A program that ends because of it may be faster than the thread that tells events.
        self.obituary.say(&self.node);
        match self.node.shutdown(LAST_WORDS) {
            // Nobody waits for what is left, and a node that failed has said so.
            Ok(()) | Err(_) => {}
        }
    }
}

impl Drop for OpenNode {
    fn drop(&mut self) {
        self.end();
        let teller = self.teller.take().filter(|_| !self.is_forked());
        if let Some(teller) = teller {
            // It ends with the node; a panic of its own has been said.
            let _ = teller.join();
        }
    }
}

/// Says once why the node of a device is down, where nobody asked for that.
struct Obituary {
    device: usize,
    said: Once,
}

impl Obituary {
    const fn new(device: usize) -> Self {
        Self {
            device,
            said: Once::new(),
        }
    }

    /// Has been said when this returns, if there is anything to say.
    fn say(&self, node: &Node) {
        match node.health().down {
            Some(Down::ShutDown | Down::Forked) | None => {}
            Some(down) => {
                let text = format!("is down: {down}");
                self.said.call_once(|| complaint::say(self.device, &text));
            }
        }
    }
}

/// Tells the events of a node until there are no more.
fn tell_events(node: &Node, registry: &Registry) {
    while let Ok(event) = node.wait_event(NAP) {
        if let Some(event) = event {
            registry.tell(event);
        }
    }
}

/// Ends the nodes at exit(3), so that peers hear of it from them and not from their
/// silence.
fn end_with_the_program() {
    static ONCE: Once = Once::new();
    /// The process that opened a node last.
    static OPENED_BY: AtomicU32 = AtomicU32::new(0);

    extern "C" fn end() {
        // In a child that opened none, the nodes are its parent's, and so may be the lock.
        if OPENED_BY.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        let open: Vec<_> = open_nodes().iter().filter_map(Weak::upgrade).collect();
        for node in open {
            node.end();
        }
    }
    OPENED_BY.store(std::process::id(), Ordering::Relaxed);
    ONCE.call_once(|| {
        // SAFETY: the function stays where it is: the library is never unloaded (`-z nodelete`).
        let registered = unsafe { libc::atexit(end) };
        // Without it peers hear of the end by the node's silence.
        debug_assert_eq!(registered, 0, "there is memory for one more");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promoted_is_said_in_one_of_three_words() {
        let said = |word: Option<&str>| {
            let options = options(0, word.map(OsString::from));
            options.map(|options| options.promotion)
        };
        assert_eq!(said(None), Ok(Promotion::Auto));
        assert_eq!(said(Some("auto")), Ok(Promotion::Auto));
        assert_eq!(said(Some("never")), Ok(Promotion::Never));
        assert_eq!(said(Some("always")), Ok(Promotion::Always));
        for word in ["", "Always", "1"] {
            assert_eq!(said(Some(word)), Err(INVALID), "{word}");
        }
    }

    #[test]
    fn what_carries_packets_is_a_kind_of_port() {
        let said = |word: Option<&str>| port(0, word.map(OsString::from));
        assert_eq!(said(None), Ok(PortKind::Udp));
        assert_eq!(said(Some("packet")), Ok(PortKind::Packet));
        for word in ["", "Packet", "1"] {
            assert_eq!(said(Some(word)), Err(INVALID), "{word}");
        }
    }

    #[test]
    fn each_device_has_a_place_of_its_own() {
        let of = |sockets: Option<&str>, addresses: Option<&str>| {
            places_of(sockets.map(OsString::from), addresses.map(OsString::from))
        };
        let service = |at: &str| Place::Service(at.into());
        let inside = |at: &str| Place::Inside(at.parse().expect("an address"));
        assert_eq!(of(None, None), Ok(Vec::new()));
        assert_eq!(of(Some("@a"), Some("::1")), Ok(vec![service("@a")]));
        assert_eq!(of(Some(","), Some("::1")), Ok(vec![inside("::1")]));
        let both = vec![service("/b:c"), service("@d")];
        assert_eq!(of(Some("/b:c,@d"), None), Ok(both));
        let both = vec![inside("127.0.0.2"), inside("::1")];
        assert_eq!(of(None, Some(",127.0.0.2,,::1,")), Ok(both));
        assert_eq!(of(None, Some("127.0.0.2,here")), Err(INVALID));
        let many = vec!["::1"; MAX_DEVICES + 1].join(",");
        let many = of(None, Some(&many)).expect("addresses");
        assert_eq!(many.len(), MAX_DEVICES);
    }

    #[test]
    fn guids_are_local_and_differ_as_addresses_do() {
        let of = |address: &str| guid_at(address.parse().expect("an address"));
        let guids = ["127.0.0.2", "127.0.0.3", "::1", "fd00::1", "fd00:0:0:1::1"].map(of);
        for (n, guid) in guids.iter().enumerate() {
            assert_eq!(guid >> 56 & 3, 2, "{guid:#x}");
            assert!(!guids[..n].contains(guid), "{guid:#x}");
        }
    }
}
