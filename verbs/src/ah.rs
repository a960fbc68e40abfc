//! Address handles.

use crate::abi;
use crate::abi::wc_flags;
use crate::answer::{Errno, INVALID, code, number, pointer};
use crate::object::{Object, Use};
use crate::pd::Pd;
use crate::query::check_port;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::zeroed;
use std::net::Ipv4Addr;
use trunkline::{AhAttributes, GRH_LEN, Gid};

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    abi: UnsafeCell<abi::Ah>,
    pub(crate) ah: trunkline::Ah,
    _pd: Use,
}

// SAFETY: the structure of the header is at its front.
unsafe impl Object for Ah {
    type Abi = abi::Ah;
}

/// The bits of a flow label.
const FLOW_LABEL: u32 = 0xf_ffff;

/// Where to, in the words of the library.
///
/// The hop limit is left to the system, as the kernel does for devices: programs say 1 or 255 and
/// mean nothing by it. Of a flow label the lower 20 bits count, as for devices: UCX sets all 32.
///
/// # Errors
/// EINVAL: there are no addresses but global ones, one port, and one GID.
pub(crate) fn attributes(attr: &abi::AhAttr) -> Result<AhAttributes, Errno> {
    check_port(attr.port_num.into())?;
    if attr.is_global == 0 || attr.grh.sgid_index != 0 {
        return Err(INVALID);
    }
    Ok(AhAttributes {
        remote: Gid(attr.grh.dgid.0),
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label & FLOW_LABEL,
        hop_limit: 0,
        service_level: attr.sl,
    })
}

unsafe fn create(pd: *mut abi::Pd, attr: &abi::AhAttr) -> Result<*mut abi::Ah, Errno> {
    // SAFETY: the program gives a domain.
    let whole = unsafe { Pd::of(pd) }?;
    let ah = Ah {
        abi: UnsafeCell::new(abi::Ah {
            context: whole.context.as_abi(),
            pd,
            handle: 0,
        }),
        ah: whole.pd.create_ah(&attributes(attr)?)?,
        _pd: whole.uses.hold(),
    };
    Ok(ah.give())
}

/// `ibv_create_ah(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut abi::Pd, attr: *mut abi::AhAttr) -> *mut abi::Ah {
    pointer(|| {
        // SAFETY: the program gives attributes.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        // SAFETY: the program gives a domain.
        unsafe { create(pd, attr) }
    })
}

/// `ibv_destroy_ah(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut abi::Ah) -> c_int {
    code(|| {
        // SAFETY: the program gives a handle.
        unsafe { Ah::of(ah) }?;
        // SAFETY: the program gives it back. Requests that were posted have what it says.
        drop(unsafe { Ah::take(ah) });
        Ok(())
    })
}

/// Who sent a datagram, by the bytes in front of it: an IPv6 header, or an IPv4 header behind 20
/// bytes that mean nothing. Gives GID, traffic class and flow label.
fn sender(grh: &[u8; GRH_LEN]) -> Result<(Gid, u8, u32), Errno> {
    const IPV4: usize = GRH_LEN - 20;
    let (first, rest) = grh.split_at(IPV4);
    if rest[0] >> 4 == 4 && first[0] >> 4 != 6 {
        let [a, b, c, d] = [rest[12], rest[13], rest[14], rest[15]];
        return Ok((Ipv4Addr::new(a, b, c, d).into(), rest[1], 0));
    }
    if grh[0] >> 4 != 6 {
        return Err(INVALID);
    }
    let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    let mut gid = Gid::default();
    gid.0.copy_from_slice(&grh[8..24]);
    Ok((gid, (word >> 20) as u8, word & 0xf_ffff))
}

/// The way back to who sent what a completion is about. No service level came with it: `sl` of a
/// completion says something else.
///
/// # Safety
/// The program gives a completion, and 40 bytes that came in front of its message.
unsafe fn way_back(
    port: u8,
    wc: *const abi::Wc,
    grh: *const [u8; GRH_LEN],
) -> Result<abi::AhAttr, Errno> {
    check_port(port.into())?;
    // SAFETY: as the caller promises.
    let wc = unsafe { wc.as_ref() }.ok_or(INVALID)?;
    if wc.wc_flags & wc_flags::GRH == 0 || grh.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises; they lie anywhere in a buffer.
    let (gid, traffic_class, flow_label) = sender(&unsafe { grh.read_unaligned() })?;
    // SAFETY: its fields are integers, which may be zero.
    let mut attr: abi::AhAttr = unsafe { zeroed() };
    attr.port_num = port;
    attr.is_global = 1;
    attr.grh.dgid = abi::AlignedGid(gid.0);
    attr.grh.traffic_class = traffic_class;
    attr.grh.flow_label = flow_label;
    attr.grh.hop_limit = u8::MAX;
    Ok(attr)
}

/// `ibv_init_ah_from_wc(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut abi::Context,
    port: u8,
    wc: *mut abi::Wc,
    grh: *mut [u8; GRH_LEN],
    attr: *mut abi::AhAttr,
) -> c_int {
    number(|| {
        // SAFETY: as the page says.
        let way = unsafe { way_back(port, wc, grh) }?;
        // SAFETY: the program gives room for attributes.
        *unsafe { attr.as_mut() }.ok_or(INVALID)? = way;
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut abi::Pd,
    wc: *mut abi::Wc,
    grh: *mut [u8; GRH_LEN],
    port: u8,
) -> *mut abi::Ah {
    pointer(|| {
        // SAFETY: as the page says.
        let way = unsafe { way_back(port, wc, grh) }?;
        // SAFETY: the program gives a domain.
        unsafe { create(pd, &way) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn a_flow_label_has_20_bits_whatever_stands_above_them() {
        // SAFETY: its fields are integers, which may be zero.
        let mut attr: abi::AhAttr = unsafe { zeroed() };
        (attr.port_num, attr.is_global) = (1, 1);
        for (given, taken) in [(7, 7), (0xfff0_0007, 7), (u32::MAX, 0xf_ffff)] {
            attr.grh.flow_label = given;
            let to = attributes(&attr).expect("an address");
            assert_eq!(to.flow_label, taken, "{given:#x}");
        }
    }

    #[test]
    fn the_sender_is_read_from_either_header() {
        let mut grh = [0; GRH_LEN];
        assert_eq!(sender(&grh), Err(INVALID));
        grh[20] = 0x45;
        grh[21] = 8;
        grh[32..36].copy_from_slice(&[10, 0, 0, 7]);
        let address = IpAddr::from([10, 0, 0, 7]);
        assert_eq!(sender(&grh), Ok((address.into(), 8, 0)));
        let mut grh = [0; GRH_LEN];
        grh[..4].copy_from_slice(&[0x60, 0x81, 0x23, 0x45]);
        grh[8] = 0xfd;
        grh[23] = 1;
        // The receiver's address may look like the start of an IPv4 header.
        grh[20] = 0x45;
        let (gid, traffic_class, flow_label) = sender(&grh).expect("it is an IPv6 header");
        assert_eq!((gid.0[0], gid.0[15]), (0xfd, 1));
        assert_eq!((traffic_class, flow_label), (8, 0x12345));
    }
}
