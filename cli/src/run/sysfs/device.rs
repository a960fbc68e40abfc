//! What the files of a device say: what its node says.

use anyhow::{Context, Result};
use std::path::Path;
use trunkline::{
    AttachOptions, Gid, InterfaceName, LinkLayer, Node, PortAttributes, PortState, Promotion,
};

/// What a node says of itself.
#[derive(Debug)]
pub(super) struct Device {
    guid: u64,
    version: &'static str,
    port: PortAttributes,
    gid: Gid,
    /// The interface that has its address.
    interface: Option<String>,
    /// What is known of where that is, each as its file says it.
    place: Vec<(&'static str, String)>,
}

/// Files of an interface's device that say where it is.
const PLACE: [&str; 3] = ["numa_node", "local_cpus", "local_cpulist"];

impl Device {
    /// Asks the node of the service at `socket`.
    ///
    /// # Errors
    /// The service does not take one more program, or does not answer.
    pub(super) fn ask(socket: &Path) -> Result<Self> {
        let promotion = Promotion::Never;
        let node = Node::attach_with(socket, &AttachOptions { promotion })
            .with_context(|| format!("asking the service at {}", socket.display()))?;
        let (about, port) = (node.device_attributes()?, node.port_attributes()?);
        let gid = node.gid();
        let interface = InterfaceName::of(gid.address()).context("interfaces")?;
        let interface = interface.map(|name| name.to_string());
        let place = interface.as_deref().map_or_else(Vec::new, place_of);
        Ok(Self {
            guid: about.node_guid,
            version: about.fw_ver,
            port,
            gid,
            interface,
            place,
        })
    }

    /// The files in the folder of the device, with the line that each holds.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let guid = grouped(self.guid.to_be_bytes());
        let device = [
            ("node_type", "1: CA".to_owned()),
            ("node_guid", guid.clone()),
            ("sys_image_guid", guid),
            ("node_desc", format!("trunkline {}", self.version)),
            ("fw_ver", self.version.to_owned()),
            ("hw_rev", "0x0".to_owned()),
            ("hca_type", "trunkline".to_owned()),
            ("board_id", "trunkline".to_owned()),
            // Programs that know a maker's devices take this one for none of them.
            ("device/vendor", "0x0000".to_owned()),
            ("device/device", "0x0000".to_owned()),
        ];
        let named = |(name, line): (&str, String)| (name.to_owned(), line);
        let mut files: Vec<_> = device.into_iter().map(named).collect();
        let place = self.place.iter();
        files.extend(place.map(|(name, line)| (format!("device/{name}"), line.clone())));
        let port = self.port_files().into_iter();
        files.extend(port.map(|(name, line)| (format!("ports/1/{name}"), line)));
        files
    }

    fn port_files(&self) -> Vec<(&'static str, String)> {
        let (state, phys_state) = match self.port.state {
            PortState::Active => ("4: ACTIVE", "5: LinkUp"),
            _ => ("1: DOWN", "3: Disabled"),
        };
        let link_layer = match self.port.link_layer {
            LinkLayer::Ethernet => "Ethernet",
            _ => "Unknown",
        };
        let rate = rate(self.port.active_width, self.port.active_speed);
        let gid = grouped(self.gid.0);
        let mut files: Vec<_> = [
            ("state", state),
            ("phys_state", phys_state),
            ("link_layer", link_layer),
            ("rate", &rate),
            // As `ibv_query_port(3)` says: no subnet manager gives any of these.
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", CAPABILITIES),
            ("pkeys/0", "0xffff"),
            ("gids/0", &gid),
            ("gid_attrs/types/0", "RoCE v2"),
        ]
        .map(|(name, line)| (name, line.to_owned()))
        .into();
        let interface = self.interface.clone();
        files.extend(interface.map(|name| ("gid_attrs/ndevs/0", name)));
        files
    }
}

/// What the library says that the port can do: CM, and GIDs that are IP addresses.
const CAPABILITIES: &str = "0x04010000";

/// Where the device of an interface is: that of a loop, say, is nowhere.
fn place_of(interface: &str) -> Vec<(&'static str, String)> {
    let folder = format!("/sys/class/net/{interface}/device");
    let said = PLACE.map(|name| {
        let text = std::fs::read_to_string(format!("{folder}/{name}")).ok()?;
        Some((name, text.trim_end().to_owned()))
    });
    let mut place: Vec<_> = said.into_iter().flatten().collect();
    if !place.iter().any(|(name, _)| *name == "numa_node") {
        place.push(("numa_node", "-1".to_owned()));
    }
    place
}

/// Bytes as groups of four digits.
fn grouped<const N: usize>(bytes: [u8; N]) -> String {
    let groups = bytes.chunks(2);
    let groups = groups.map(|group| group.iter().map(|byte| format!("{byte:02x}")).collect());
    groups.collect::<Vec<String>>().join(":")
}

/// A rate as the kernel says it, from width and speed as verbs encode them.
fn rate(width: u8, speed: u8) -> String {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        _ => 12,
    };
    // Of a lane, in tenths of Gb/s.
    let (each, name) = match speed {
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        16 => (140, "FDR"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        128 => (1000, "NDR"),
        _ => (25, "SDR"),
    };
    let all = lanes * each;
    let half = if all % 10 == 5 { ".5" } else { "" };
    format!("{}{half} Gb/sec ({lanes}X {name})", all / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_said_as_the_kernel_says_them() {
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(1, 32), "25 Gb/sec (1X EDR)");
        assert_eq!(rate(2, 32), "100 Gb/sec (4X EDR)");
        assert_eq!(rate(4, 64), "400 Gb/sec (8X HDR)");
    }

    #[test]
    fn gids_and_guids_are_groups_of_four_digits() {
        let gid = std::net::Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped();
        let said = "0000:0000:0000:0000:0000:ffff:7f00:0002";
        assert_eq!(grouped(gid.octets()), said);
        assert_eq!(
            grouped(0x0200_5efe_7f00_0002_u64.to_be_bytes()),
            "0200:5efe:7f00:0002"
        );
    }

    #[test]
    fn a_loop_is_nowhere() {
        assert_eq!(place_of("lo"), [("numa_node", "-1".to_owned())]);
    }
}
