//! Ports that other crates bring, as those of DPDK, whose libraries not every machine has.

use super::PortKind;
use crate::worker::core::PortBox;
use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_wire::Workers;

/// What a node wants of its ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortRequest {
    /// Address of the node.
    pub address: IpAddr,
    /// UDP port that packets come to.
    pub udp_port: u16,
    /// UDP source ports beside that ([`Builder::extra_source_ports`]).
    ///
    /// [`Builder::extra_source_ports`]: crate::Builder::extra_source_ports
    pub extra_source_ports: usize,
    /// Workers of the node; there is a port for each.
    pub workers: Workers,
}

/// Where ports of a kind come from. Its text is what follows the colon on command lines.
pub trait PortSource: fmt::Debug + fmt::Display + Send + Sync {
    /// The name of its family.
    fn family(&self) -> &'static str;

    /// What it is, in a line.
    fn about(&self) -> &'static str;

    /// Whether no second node of a program can have such ports, and what helps; `None`: it can.
    fn excludes_others(&self) -> Option<&'static str> {
        None
    }

    /// Whether both ends of such ports are in one process, and what helps who has two; `None`:
    /// they need not be.
    fn stays_in_process(&self) -> Option<&'static str> {
        None
    }

    /// Opens a port for each worker.
    ///
    /// # Errors
    /// Says what is missing, and what helps.
    fn open(&self, request: &PortRequest) -> Result<Vec<PortBox>, Box<dyn Error + Send + Sync>>;
}

/// Kinds of ports that command lines and files name `NAME:TEXT`.
pub trait PortFamily: fmt::Debug + Send + Sync {
    /// What comes before the colon.
    fn name(&self) -> &'static str;

    /// What they are, and how the text says which, in a line.
    fn about(&self) -> &'static str;

    /// What this machine has for such ports of a node at `address`.
    ///
    /// # Errors
    /// It lacks something; the error says what, and what helps.
    fn look(&self, address: IpAddr) -> Result<String, Box<dyn Error + Send + Sync>>;

    /// The ports that a text says.
    ///
    /// # Errors
    /// Says what is wrong with it.
    fn source(&self, text: &str) -> Result<Arc<dyn PortSource>, Box<dyn Error + Send + Sync>>;
}

static FAMILIES: Mutex<Vec<&'static dyn PortFamily>> = Mutex::new(Vec::new());

fn families() -> MutexGuard<'static, Vec<&'static dyn PortFamily>> {
    FAMILIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The family of that name.
pub(super) fn named(name: &str) -> Option<&'static dyn PortFamily> {
    let all = families();
    all.iter().copied().find(|family| family.name() == name)
}

/// The family that no command has but the one that is built with it, and how that is.
const ELSEWHERE: &str = "dpdk";
const BUILD: &str = "those of DPDK are in the command that `cargo build --release --manifest-path \
    dpdk/Cargo.toml` makes";

/// What ports are called, for who named none of them but `name`.
pub(super) fn known(name: &str) -> String {
    let built_in = PortKind::BUILT_IN.map(|kind| kind.name().to_owned());
    let others = PortKind::families().into_iter().map(|family| {
        let name = family.name();
        format!("{name}:...")
    });
    let all: Vec<_> = built_in.into_iter().chain(others).collect();
    let known = format!("there are {}", all.join(", "));
    match name {
        ELSEWHERE => format!("{known}; {BUILD}"),
        _ => known,
    }
}

impl PortKind {
    /// From now on texts may name ports of this family. One of the same name takes its place.
    pub fn add_family(family: &'static dyn PortFamily) {
        let mut all = families();
        all.retain(|known| known.name() != family.name());
        all.push(family);
    }

    /// The families that were added.
    pub fn families() -> Vec<&'static dyn PortFamily> {
        families().clone()
    }
}
