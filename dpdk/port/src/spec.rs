//! The text that says which port of DPDK: a device, the network at it, arguments of DPDK itself.
//!
//! ```text
//! DEVICE [prefix=N] [gateway=IP] [mtu=N] [mac=MAC] [-- EAL ARGUMENTS]
//!
//! net_memif0,role=server,socket=/run/m.sock prefix=24
//! net_af_xdp0,iface=eth0
//! 0000:03:00.0 prefix=24 gateway=192.0.2.1 -- -m 1024
//! ring
//! ```

mod device;
#[cfg(test)]
mod tests;

pub use device::{DeviceSpec, Driver};

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use trunkline_dpdk_eal::{self as eal, EalError};
use trunkline_wire::Mac;

/// What begins the arguments of DPDK itself.
const BREAK: &str = "--";
/// Smallest MTU: that of IPv6 (RFC 8200, 5).
const LEAST_MTU: u16 = 1280;
/// Largest MTU: that of most cards.
const MOST_MTU: u16 = 9600;

/// Which port of DPDK.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DpdkSpec {
    pub(crate) device: DeviceSpec,
    pub(crate) prefix: Option<u8>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) mtu: Option<u16>,
    pub(crate) mac: Option<Mac>,
    pub(crate) arguments: Vec<String>,
}

impl DpdkSpec {
    /// The device.
    pub const fn device(&self) -> &DeviceSpec {
        &self.device
    }

    /// Bits of the address that all neighbours share.
    pub const fn prefix(&self) -> Option<u8> {
        self.prefix
    }

    /// The neighbour that packets to other networks go to.
    pub const fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Bytes of the longest IP packet.
    pub const fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    /// Its address of the link.
    pub const fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Arguments of DPDK itself.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }
}

/// Why a text says no port of DPDK.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No device is named.
    #[error("which device? {KNOWN}")]
    Empty,
    /// It names no device.
    #[error("{text:?} is no device: {KNOWN}")]
    Device {
        /// The text.
        text: String,
    },
    /// The device lacks something, or has something that it does not know.
    #[error("{device:?} {what}")]
    DeviceArgument {
        /// The device.
        device: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A word is none of those that there are.
    #[error("{word:?} is none of prefix=N, gateway=IP, mtu=N, mac=MAC, -- EAL ARGUMENTS")]
    Word {
        /// The word.
        word: String,
    },
    /// A word has a value that it cannot have.
    #[error("{word:?}: {what}")]
    Value {
        /// The word.
        word: String,
        /// What it can have.
        what: &'static str,
    },
    /// A word is there twice.
    #[error("{name}= is there twice")]
    Twice {
        /// What it is called.
        name: &'static str,
    },
    /// An argument of DPDK itself is none for ports.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// The interface stays the kernel's, which knows its network.
    #[error(
        "{device} leaves the interface to the kernel, which says its network: leave out {name}="
    )]
    Kernel {
        /// The device.
        device: String,
        /// What has to be left out.
        name: &'static str,
    },
}

/// Examples for each kind of device.
const KNOWN: &str = "there are net_memif0,role=server,socket=/run/m.sock (shared memory), \
    net_af_xdp0,iface=eth0 and net_af_packet0,iface=eth0 (interfaces of the kernel), 0000:03:00.0 \
    (the PCI bus), other drivers of DPDK by the names that it gives them, and ring (two ends in \
    one process)";

/// Puts a value in its place, once.
fn put<T>(place: &mut Option<T>, name: &'static str, value: T) -> Result<(), SpecError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(SpecError::Twice { name }),
    }
}

/// The address of a link, as six numbers of two digits each.
fn mac(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    // The first bit is that of groups.
    let is_one = bytes[0] & 1 == 0 && bytes != [0; 6];
    (is_one && parts.next().is_none()).then_some(Mac(bytes))
}

impl DpdkSpec {
    fn take_word(&mut self, word: &str) -> Result<(), SpecError> {
        let wrong = |what| SpecError::Value {
            word: word.to_owned(),
            what,
        };
        let Some((name, value)) = word.split_once('=') else {
            let word = word.to_owned();
            return Err(SpecError::Word { word });
        };
        match name {
            "prefix" => {
                let bits = value.parse().ok().filter(|bits| *bits <= 128);
                let bits = bits.ok_or_else(|| wrong("it is in 0..=32, over IPv6 in 0..=128"))?;
                put(&mut self.prefix, "prefix", bits)
            }
            "gateway" => {
                let address = value.parse().map_err(|_| wrong("it is an IP address"))?;
                put(&mut self.gateway, "gateway", address)
            }
            "mtu" => {
                let range = LEAST_MTU..=MOST_MTU;
                let mtu = value.parse().ok().filter(|mtu| range.contains(mtu));
                let mtu = mtu.ok_or_else(|| wrong("it is in 1280..=9600"))?;
                put(&mut self.mtu, "mtu", mtu)
            }
            "mac" => {
                let one = "it is the address of one host, as 02:00:00:00:00:01";
                let mac = mac(value).ok_or_else(|| wrong(one))?;
                put(&mut self.mac, "mac", mac)
            }
            _ => {
                let word = word.to_owned();
                Err(SpecError::Word { word })
            }
        }
    }

    /// Where the kernel has the interface, it says the network.
    fn check(&self) -> Result<(), SpecError> {
        if self.device.driver() != Driver::AfPacket {
            return Ok(());
        }
        let said = [
            ("prefix", self.prefix.is_some()),
            ("gateway", self.gateway.is_some()),
            ("mtu", self.mtu.is_some()),
            ("mac", self.mac.is_some()),
        ];
        match said.into_iter().find(|(_, is_said)| *is_said) {
            None => Ok(()),
            Some((name, _)) => Err(SpecError::Kernel {
                device: self.device.name().to_owned(),
                name,
            }),
        }
    }
}

impl FromStr for DpdkSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut words = text.split_whitespace();
        let device = words.next().filter(|word| *word != BREAK);
        let device = device.ok_or(SpecError::Empty)?.parse()?;
        let mut spec = Self {
            device,
            prefix: None,
            gateway: None,
            mtu: None,
            mac: None,
            arguments: Vec::new(),
        };
        for word in words.by_ref().take_while(|word| *word != BREAK) {
            spec.take_word(word)?;
        }
        spec.arguments = words.map(ToOwned::to_owned).collect();
        eal::check(&spec.arguments)?;
        spec.check()?;
        Ok(spec)
    }
}

impl fmt::Display for DpdkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device)?;
        if let Some(prefix) = self.prefix {
            write!(f, " prefix={prefix}")?;
        }
        if let Some(gateway) = self.gateway {
            write!(f, " gateway={gateway}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu={mtu}")?;
        }
        if let Some(mac) = self.mac {
            write!(f, " mac={mac}")?;
        }
        if !self.arguments.is_empty() {
            write!(f, " {BREAK} {}", self.arguments.join(" "))?;
        }
        Ok(())
    }
}
