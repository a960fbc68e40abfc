//! Ports of DPDK, for whoever names them on command lines and in files.

use crate::error::DpdkOpenError;
use crate::{DpdkDevice, DpdkSpec, Driver};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use trunkline::{Port, PortFamily, PortRequest, PortSource};
use trunkline_dataplane::{InterfaceName, LinkConfig, LinkPort};
use trunkline_dpdk_eal::{self as eal, Arguments};

/// The name of the family.
const NAME: &str = "dpdk";
/// What its ports are.
const ABOUT: &str = "raw frames by DPDK; after the colon a device as DPDK writes it, \
    [prefix=N] [gateway=IP] [mtu=N] [mac=MAC] [-- EAL ARGUMENTS]";

/// The family of ports `dpdk:...`.
#[derive(Clone, Copy, Debug)]
pub struct Family;

impl PortFamily for Family {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        ABOUT
    }

    fn look(&self, address: IpAddr) -> Result<String, Box<dyn Error + Send + Sync>> {
        eal::look(&Arguments::new(None, &[]))?;
        if InterfaceName::of(address)?.is_none() {
            return Err(DpdkOpenError::Foreign { address }.into());
        }
        let memory = match eal::free_huge_bytes() >> 20 {
            0 => "without huge pages (`sysctl vm.nr_hugepages=512` gives some)".to_owned(),
            free => format!("{free} MiB of huge pages free"),
        };
        Ok(format!("{}, {memory}", eal::version()))
    }

    fn source(&self, text: &str) -> Result<Arc<dyn PortSource>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::new(text.parse::<DpdkSpec>()?))
    }
}

impl DpdkSpec {
    /// Opens a port for each worker of a node.
    ///
    /// # Errors
    /// See [`DpdkOpenError`].
    pub fn open_ports(
        &self,
        request: &PortRequest,
    ) -> Result<Vec<LinkPort<DpdkDevice>>, DpdkOpenError> {
        let address = (request.address, request.udp_port);
        let claim = self.claim(address)?;
        let mut devices = DpdkDevice::open_group(self, request.workers)?;
        for device in &mut devices {
            device.claim.clone_from(&claim);
        }
        let first = devices.first().expect("a node has a worker");
        let at = self.address(first, address, request.workers)?;
        let config = LinkConfig {
            extra_source_ports: request.extra_source_ports,
        };
        let open = |device| Ok(LinkPort::new(&at, device, &config)?);
        devices.into_iter().map(open).collect()
    }
}

impl PortSource for DpdkSpec {
    fn family(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        ABOUT
    }

    fn excludes_others(&self) -> Option<&'static str> {
        let is_pair = self.device().driver() == Driver::Ring;
        (!is_pair).then_some("dpdk:ring joins two, or give another kind of port")
    }

    fn stays_in_process(&self) -> Option<&'static str> {
        let is_pair = self.device().driver() == Driver::Ring;
        is_pair.then_some("use `trunkline demo`, or dpdk:net_memif")
    }

    fn open(
        &self,
        request: &PortRequest,
    ) -> Result<Vec<Box<dyn Port + Send>>, Box<dyn Error + Send + Sync>> {
        let ports = self.open_ports(request)?.into_iter();
        Ok(ports
            .map(|port| Box::new(port) as Box<dyn Port + Send>)
            .collect())
    }
}
