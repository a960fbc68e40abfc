//! The place of devices of DPDK in a network.

use crate::error::DpdkOpenError;
use crate::spec::{DpdkSpec, Driver};
use crate::{DpdkDevice, kernel};
use std::net::IpAddr;
use trunkline_dataplane::{Interface, InterfaceName, LinkAddress, LinkOpenError};
use trunkline_wire::{ROCE_PORT, Workers};

impl DpdkSpec {
    /// What ports on `device` share, which was opened by this: an address, with that UDP port, of
    /// an interface that is theirs, or the kernel's.
    ///
    /// # Errors
    /// See [`DpdkOpenError`].
    pub fn address(
        &self,
        device: &DpdkDevice,
        (address, udp_port): (IpAddr, u16),
        workers: Workers,
    ) -> Result<LinkAddress, DpdkOpenError> {
        if self.device().driver() == Driver::AfPacket {
            return self.at_kernel(address, udp_port);
        }
        if udp_port != ROCE_PORT {
            return Err(LinkOpenError::UdpPort { port: udp_port }.into());
        }
        let prefix = self.prefix_of(address)?;
        let interface = Interface {
            mac: device.mac(),
            address,
            prefix,
            gateway: self.gateway(),
            mtu: device.mtu(),
        };
        let name = InterfaceName::new(device.name().as_bytes());
        Ok(LinkAddress::alone(interface, name, workers.count().into())?)
    }

    /// Takes the address from other nodes of this host, where it is the kernel's, too, and the
    /// driver takes all frames of its interface: they would hear nothing any more. `None`: it is
    /// not.
    ///
    /// # Errors
    /// Somebody has it.
    pub(crate) fn claim(
        &self,
        (address, udp_port): (IpAddr, u16),
    ) -> Result<Option<LinkAddress>, DpdkOpenError> {
        let device = self.device();
        let has_it = |name| kernel::prefix(name, address).is_some();
        let is_shared = device.argument("iface").is_some_and(has_it);
        if device.driver() != Driver::AfXdp || udp_port != ROCE_PORT || !is_shared {
            return Ok(None);
        }
        Ok(Some(LinkAddress::take(address, udp_port)?))
    }

    /// The address of an interface that stays the kernel's.
    fn at_kernel(&self, address: IpAddr, udp_port: u16) -> Result<LinkAddress, DpdkOpenError> {
        let at = LinkAddress::take(address, udp_port)?;
        let interface = at.interface().name.to_string();
        if self.device().argument("iface") != Some(&interface) {
            return Err(DpdkOpenError::OtherInterface {
                address,
                interface,
                device: self.device().name().to_owned(),
            });
        }
        Ok(at)
    }

    /// How many bits of the address neighbours share.
    fn prefix_of(&self, address: IpAddr) -> Result<u8, DpdkOpenError> {
        let device = self.device();
        let said = self.prefix().or_else(|| match device.driver() {
            // Everybody else is at the other end.
            Driver::Ring | Driver::Memif => Some(0),
            _ => kernel::prefix(device.argument("iface")?, address),
        });
        let device = device.name().to_owned();
        let prefix = said.ok_or(DpdkOpenError::Prefix { device })?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            return Err(DpdkOpenError::PrefixTooLong { address, prefix });
        }
        Ok(prefix)
    }
}
