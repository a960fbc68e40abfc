//! Management datagrams as they travel: a UD SEND from QP1 to QP1 (IBTA Vol 1, 13.6).
//!
//! ```text
//! | BTH 12 | DETH 8 | MAD 256 | ICRC 4 |
//! ```

use trunkline_conn::ingress::Identification;
use trunkline_wire::{
    Bth, BthView, Deth, IcrcSeed, MAD_LEN, Opcode, Path, Psn, Qpn, WireError, icrc, parse_datagram,
};

/// Bytes of the datagram: payload of a UDP packet.
pub const LEN: usize = Bth::LEN + Deth::LEN + MAD_LEN + icrc::LEN;

/// P_Key of the default partition, full member.
const PKEY: u16 = 0xffff;
/// What of a P_Key names the partition.
const PKEY_PARTITION: u16 = 0x7fff;

/// What is wrong with a datagram to QP1.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FrameError {
    /// It cannot be taken apart.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It is no UD SEND of one packet.
    #[error("opcode {0:?} is no UD SEND")]
    Opcode(Opcode),
    /// It goes to another QP.
    #[error("{0} is not QP1")]
    Qp(Qpn),
    /// It has another Q_Key than management datagrams have.
    #[error("Q_Key {0:#010x} is not that of QP1")]
    Qkey(u32),
    /// It is of another partition.
    #[error("P_Key {0:#06x} is not of the default partition")]
    Pkey(u16),
    /// A management datagram has 256 bytes.
    #[error("{0} bytes are no management datagram")]
    Length(usize),
    /// It was damaged, or its addresses are not what its sender took them for.
    #[error("ICRC is wrong")]
    Icrc,
}

/// Wraps a management datagram into `out`. `psn` counts the datagrams of the sender's QP1;
/// `identification` is that of the IPv4 header, without meaning over IPv6.
///
/// # Panics
/// The addresses of `path` are of different families.
pub fn build(path: &Path, identification: u16, psn: Psn, mad: &[u8; MAD_LEN], out: &mut [u8; LEN]) {
    let bth = Bth {
        opcode: Opcode::UD_SEND_ONLY,
        mig_req: true,
        pkey: PKEY,
        dest_qp: Qpn::GSI,
        // As other implementations send it, though nobody acknowledges a datagram.
        ack_req: true,
        psn,
        ..Bth::default()
    };
    let deth = Deth {
        qkey: Deth::GSI_QKEY,
        src_qp: Qpn::GSI,
    };
    let (head, rest) = out.split_at_mut(Bth::LEN);
    head.copy_from_slice(&bth.to_bytes());
    let (head, rest) = rest.split_at_mut(Deth::LEN);
    head.copy_from_slice(&deth.to_bytes());
    rest[..MAD_LEN].copy_from_slice(mad);
    IcrcSeed::new(path).seal(identification, out);
}

/// Whether a datagram is for QP1, going by its BTH alone.
pub fn is_management(datagram: &[u8]) -> bool {
    BthView::split(datagram).is_ok_and(|(bth, _)| bth.dest_qp() == Qpn::GSI)
}

/// Takes the payload of a UDP packet apart whose ICRC was, or will be, found right elsewhere.
///
/// # Errors
/// It is no management datagram for QP1.
pub fn parse(datagram: &[u8]) -> Result<&[u8; MAD_LEN], FrameError> {
    let packet = parse_datagram(datagram)?;
    let (Opcode::UD_SEND_ONLY, Some(deth)) = (packet.bth.opcode, packet.deth) else {
        return Err(FrameError::Opcode(packet.bth.opcode));
    };
    if packet.bth.dest_qp != Qpn::GSI {
        return Err(FrameError::Qp(packet.bth.dest_qp));
    }
    if deth.qkey != Deth::GSI_QKEY {
        return Err(FrameError::Qkey(deth.qkey));
    }
    if packet.bth.pkey & PKEY_PARTITION != PKEY_PARTITION {
        return Err(FrameError::Pkey(packet.bth.pkey));
    }
    let length = packet.payload.len();
    packet
        .payload
        .try_into()
        .map_err(|_| FrameError::Length(length))
}

/// As [`parse`], and checks the ICRC. `identification` is that of the IPv4 header. Where the port
/// does not see it, and the one that it predicts is not right, one for which the ICRC is right is
/// looked for, and of damaged datagrams one in 65,536 passes.
///
/// # Errors
/// It is no management datagram for QP1, or damaged.
///
/// # Panics
/// The addresses of `path` are of different families.
pub fn parse_checked<'a>(
    path: &Path,
    identification: Identification,
    datagram: &'a [u8],
) -> Result<&'a [u8; MAD_LEN], FrameError> {
    let mad = parse(datagram)?;
    let seed = IcrcSeed::new(path);
    let right = match identification {
        Identification::Seen(identification) => seed.verify(identification, datagram),
        Identification::Predicted(likely) => seed.verify_any(likely, datagram),
    };
    if right {
        Ok(mad)
    } else {
        Err(FrameError::Icrc)
    }
}
