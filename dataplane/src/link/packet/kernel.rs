//! What the kernel takes that cannot be asked for without sending something.

use std::ffi::CStr;

/// The first version that takes super-packets of UDP by a header of virtio
/// (`VIRTIO_NET_HDR_GSO_UDP_L4`). An older one loses them, and says nothing where others must not
/// wait for what it refuses (`PACKET_LOSS`).
const SUPER_PACKETS: (u32, u32) = (6, 2);

/// Whether this one takes super-packets.
pub(super) fn takes_super_packets() -> bool {
    // SAFETY: all zeros are a valid value of it: empty strings.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: room for the answer.
    if unsafe { libc::uname(&raw mut name) } != 0 {
        return false;
    }
    // SAFETY: the kernel ends the string.
    let release = unsafe { CStr::from_ptr(name.release.as_ptr()) };
    has_super_packets(&release.to_string_lossy())
}

fn has_super_packets(release: &str) -> bool {
    version(release).is_some_and(|version| version >= SUPER_PACKETS)
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        for (release, expected) in [
            ("6.2", Some((6, 2))),
            ("6.18.44-fc-v595", Some((6, 18))),
            ("5.14.0-427.13.1.el9_4.x86_64", Some((5, 14))),
            ("6.1.0-18-amd64", Some((6, 1))),
            ("10.0-rc1", Some((10, 0))),
            ("6.-2", None),
            ("six.two", None),
            ("", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    #[test]
    fn kernels_take_super_packets_from_6_2_on() {
        for (release, takes) in [("6.1.99", false), ("5.19", false), ("strange", false)]
            .into_iter()
            .chain([("6.2.0", true), ("6.10", true), ("7.0", true)])
        {
            assert_eq!(has_super_packets(release), takes, "{release}");
        }
    }
}
