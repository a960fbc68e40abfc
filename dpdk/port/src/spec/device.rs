//! What comes first in the text: the device, as DPDK writes it.

use super::SpecError;
use std::fmt;
use std::str::FromStr;

/// The name of two ends in one process.
const RING: &str = "ring";
/// The domain that addresses on the PCI bus have that name none.
const FIRST_DOMAIN: &str = "0000:";
/// Drivers that trunkline knows more of than their names, by how devices of theirs begin.
const DRIVERS: [(&str, Driver); 3] = [
    ("net_memif", Driver::Memif),
    ("net_af_packet", Driver::AfPacket),
    ("net_af_xdp", Driver::AfXdp),
];
/// How names of devices without a bus begin.
const VIRTUAL: [&str; 2] = ["net_", "virtio_user"];

/// Most bytes of the path of a socket, which a zero follows; one begins an abstract name, too.
const MOST_SOCKET: usize = 107;

/// What carries the frames of a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Driver {
    /// Two ends in one process, joined by rings.
    Ring,
    /// Shared memory with another process (`net_memif`).
    Memif,
    /// An AF_PACKET socket on an interface, which stays the kernel's (`net_af_packet`).
    AfPacket,
    /// An AF_XDP socket on an interface, which is taken from the kernel (`net_af_xdp`).
    AfXdp,
    /// A device on the PCI bus.
    Pci,
    /// Another driver of DPDK.
    Other,
}

/// A device, as DPDK writes it: a name, and arguments of its driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceSpec {
    driver: Driver,
    name: String,
    arguments: Vec<String>,
}

impl DeviceSpec {
    /// What carries its frames.
    pub const fn driver(&self) -> Driver {
        self.driver
    }

    /// Its name; of a device on the PCI bus, its address there.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value of an argument of its driver.
    pub fn argument(&self, key: &str) -> Option<&str> {
        let mut pairs = self.arguments.iter().map(|pair| pair.split_once('='));
        pairs.find_map(|pair| {
            pair.filter(|(name, _)| *name == key)
                .map(|(_, value)| value)
        })
    }

    /// As DPDK takes it, with an argument for each of `defaults` that it does not have.
    pub(crate) fn devargs(&self, defaults: &[(&str, String)]) -> String {
        let mut words = vec![self.name.clone()];
        words.extend_from_slice(&self.arguments);
        for (key, value) in defaults {
            if self.argument(key).is_none() {
                words.push(format!("{key}={value}"));
            }
        }
        words.join(",")
    }

    fn check(&self) -> Result<(), SpecError> {
        let wrong = |what| {
            let device = self.to_string();
            Err(SpecError::DeviceArgument { device, what })
        };
        let is_pair = |pair: &String| pair.split_once('=').is_some_and(|(key, _)| !key.is_empty());
        if !self.arguments.iter().all(is_pair) {
            return wrong("has arguments that are not key=value, with a comma between two of them");
        }
        match self.driver {
            Driver::AfPacket | Driver::AfXdp if self.argument("iface").is_none() => {
                wrong("lacks iface=, the interface that it is on")
            }
            Driver::Memif if !self.has_role() => {
                wrong("lacks role=server or role=client: one of both ends serves")
            }
            Driver::Memif if self.socket_is_too_long() => wrong(
                "has a socket= of too many bytes: an abstract one has up to 106, and with \
                 socket-abstract=no a path has up to 107",
            ),
            Driver::Ring if self.arguments.iter().any(|pair| !pair.starts_with("name=")) => {
                wrong("takes name= alone, which tells rings of one process apart")
            }
            _ => Ok(()),
        }
    }

    /// Whether the driver would cut off the end of the name of its socket (unix(7)).
    fn socket_is_too_long(&self) -> bool {
        let is_path = self.argument("socket-abstract") == Some("no");
        let most = MOST_SOCKET - usize::from(!is_path);
        self.argument("socket")
            .is_some_and(|name| name.len() > most)
    }

    fn has_role(&self) -> bool {
        // The older words are still those of some versions.
        let roles = ["server", "client", "master", "slave"];
        self.argument("role")
            .is_some_and(|role| roles.contains(&role))
    }
}

/// The address of a device on the PCI bus, with its domain.
fn pci(text: &str) -> Option<String> {
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let (domain, rest) = match text.matches(':').count() {
        1 => (FIRST_DOMAIN, text),
        2 => text.split_at(text.find(':')? + 1),
        _ => return None,
    };
    let (bus, slot) = rest.split_once(':')?;
    let (slot, function) = slot.split_once('.')?;
    let is_address = hex(domain.strip_suffix(':')?, 4)
        && hex(bus, 2)
        && hex(slot, 2)
        && matches!(function.as_bytes(), [b'0'..=b'7']);
    is_address.then(|| format!("{domain}{rest}").to_ascii_lowercase())
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let known = DRIVERS
            .into_iter()
            .find(|(start, _)| name.starts_with(start));
        let (driver, name) = if name == RING {
            (Driver::Ring, name.to_owned())
        } else if let Some(address) = pci(name) {
            (Driver::Pci, address)
        } else if let Some((_, driver)) = known {
            (driver, name.to_owned())
        } else if VIRTUAL.iter().any(|start| name.starts_with(start)) {
            (Driver::Other, name.to_owned())
        } else {
            let text = text.to_owned();
            return Err(SpecError::Device { text });
        };
        let arguments = words.map(ToOwned::to_owned).collect();
        let spec = Self {
            driver,
            name,
            arguments,
        };
        spec.check()?;
        Ok(spec)
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.devargs(&[]))
    }
}
