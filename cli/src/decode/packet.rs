//! From the IP packet of a captured frame to what there is to say of it.

use super::link::claims_roce;
use super::record::{Fields, Record, Value, Verdict, fields};
use super::{cm, shared};
use trunkline_wire::{
    Aeth, Content, Ip, NakCode, Packet, Qpn, Roce, SrcExt, Syndrome, WireError, parse_datagram,
    rnr_timer_ns,
};

/// ECN bits of a packet that met congestion.
const CONGESTION_EXPERIENCED: u8 = 3;
/// The partition that everything is in.
const DEFAULT_PKEY: u16 = 0xffff;

/// What there is to say of an IP packet; `None` when it is not RoCEv2.
pub(crate) fn examine(number: u64, time_ns: u64, since_ns: u64, ip: &[u8]) -> Option<Record> {
    let mut record = Record {
        number,
        time_ns,
        since_ns,
        addresses: None,
        opcode: None,
        cm: None,
        base: Fields::default(),
        sections: Vec::new(),
        verdict: Verdict::Ok,
    };
    match roce_of(ip, &mut record) {
        Ok(None) => return None,
        Ok(Some(roce)) => match parse_datagram(roce.datagram) {
            Ok(packet) => describe(&roce, &packet, &mut record),
            Err(error) => record.verdict = Verdict::Malformed(error.to_string()),
        },
        Err(error) if claims_roce(ip) => record.verdict = Verdict::Malformed(error.to_string()),
        Err(_) => return None,
    }
    Some(record)
}

fn roce_of<'a>(bytes: &'a [u8], record: &mut Record) -> Result<Option<Roce<'a>>, WireError> {
    let (ip, payload, _) = Ip::read(bytes)?;
    record.addresses = Some((ip.src(), ip.dst()));
    Ok(Content::of(ip, payload)?.roce())
}

fn describe(roce: &Roce<'_>, packet: &Packet<'_>, record: &mut Record) {
    record.opcode = Some(packet.opcode().name());
    record.base = base(roce, packet);
    record.sections = headers(roce, packet);
    let contents = if packet.ext.is_some() {
        shared::contents(packet, &mut record.sections)
    } else if packet.bth.dest_qp == Qpn::GSI && packet.deth.is_some() {
        cm::contents(packet.payload, record)
    } else {
        Ok(())
    };
    record.verdict = match contents {
        // What a wrong ICRC does not vouch for is not judged.
        _ if !roce.icrc_ok() => Verdict::BadIcrc,
        Ok(()) => Verdict::Ok,
        Err(error) => Verdict::Malformed(error.to_string()),
    };
}

fn base(roce: &Roce<'_>, packet: &Packet<'_>) -> Fields {
    let bth = &packet.bth;
    // Shared connections number their packets in 64 bits; what is not numbered has the low ones.
    let psn = match &packet.ext {
        Some(ext) if bth.opcode.is_numbered() => ext.psn64(bth.psn),
        _ => bth.psn.get().into(),
    };
    let mut base = fields! {
        "dest_qp": bth.dest_qp.into(),
        "psn": psn.into(),
        "payload": (packet.payload.len() as u64).into(),
        "ack_req": bth.ack_req.into(),
        "solicited": bth.solicited.into(),
        "ce": (roce.path.traffic_class & 3 == CONGESTION_EXPERIENCED).into(),
    };
    if bth.becn || bth.fecn {
        base.add("becn", bth.becn.into());
        base.add("fecn", bth.fecn.into());
    }
    if bth.pkey != DEFAULT_PKEY {
        base.add("pkey", Value::Hex(bth.pkey.into(), 4));
    }
    base
}

fn headers(roce: &Roce<'_>, packet: &Packet<'_>) -> Vec<(&'static str, Fields)> {
    let mut sections = Vec::new();
    if let Some(deth) = packet.deth {
        let qkey = Value::Hex(deth.qkey.into(), 8);
        sections.push((
            "deth",
            fields! { "src_qp": deth.src_qp.into(), "qkey": qkey },
        ));
    }
    if let Some(ext) = &packet.ext {
        sections.push(("ext", extension(ext)));
    }
    if let Some(reth) = packet.reth {
        let (va, rkey) = (Value::Hex(reth.va, 16), Value::Hex(reth.rkey.0.into(), 8));
        sections.push((
            "reth",
            fields! { "va": va, "rkey": rkey, "length": reth.length.into() },
        ));
    }
    if let Some(atomic) = packet.atomic {
        let fields = fields! {
            "va": Value::Hex(atomic.va, 16),
            "rkey": Value::Hex(atomic.rkey.0.into(), 8),
            "swap_or_add": Value::Hex(atomic.swap_or_add, 16),
            "compare": Value::Hex(atomic.compare, 16),
        };
        sections.push(("atomic", fields));
    }
    if let Some(Aeth { syndrome, msn }) = packet.aeth {
        let mut fields = syndrome_fields(syndrome);
        fields.add("msn", msn.into());
        sections.push(("aeth", fields));
    }
    if let Some(ack) = packet.atomic_ack {
        sections.push(("atomic_ack", fields! { "original": Value::Hex(ack.0, 16) }));
    }
    if let Some(imm) = packet.imm {
        sections.push(("imm", fields! { "value": Value::Hex(imm.0.into(), 8) }));
    }
    if let Some(ieth) = packet.ieth {
        sections.push(("ieth", fields! { "rkey": Value::Hex(ieth.0.0.into(), 8) }));
    }
    if let Some(right) = roce.header_crc_ok(packet) {
        let verdict = if right { "ok" } else { "BAD" };
        sections.push(("hcrc", fields! { "sum": verdict.into() }));
    }
    sections
}

fn extension(ext: &SrcExt) -> Fields {
    fields! {
        "token": Value::Hex(ext.token.into(), 8),
        "src_qp": ext.src_qp.into(),
        "to_qp": ext.dest_qp.into(),
        "msn": ext.msn.into(),
        "offset": ext.offset.into(),
        "replay_epoch": ext.replay_epoch.into(),
        "generation": ext.generation.into(),
        "attempt": ext.attempt.into(),
        "ack": ext.ack.into(),
        "timestamp": ext.timestamp.into(),
        "echo": ext.echo.into(),
        "last": ext.last.into(),
        "abort": ext.abort.into(),
        "sealed": ext.sealed.into(),
    }
}

/// A syndrome in words, with its code and what the code says.
pub(crate) fn syndrome_fields(syndrome: Syndrome) -> Fields {
    let words = match syndrome {
        Syndrome::Ack { .. } => "ACK".to_owned(),
        Syndrome::RnrNak { .. } => "RNR NAK".to_owned(),
        Syndrome::Nak(code) => nak(code),
    };
    let mut fields = fields! { "syndrome": words.into(), "code": syndrome.byte().into() };
    match syndrome {
        Syndrome::Ack { credits } => fields.add("credits", credits.into()),
        Syndrome::RnrNak { timer } => fields.add("wait_us", (rnr_timer_ns(timer) / 1000).into()),
        Syndrome::Nak(_) => {}
    }
    fields
}

fn nak(code: NakCode) -> String {
    match code {
        NakCode::PsnSequence => "NAK PSN sequence error".to_owned(),
        NakCode::InvalidRequest => "NAK invalid request".to_owned(),
        NakCode::RemoteAccess => "NAK remote access error".to_owned(),
        NakCode::RemoteOperational => "NAK remote operational error".to_owned(),
        NakCode::InvalidRd => "NAK invalid RD request".to_owned(),
        NakCode::Reserved(code) => format!("NAK reserved code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::{Bth, Eth, Frame, IpFields, Mac, Opcode, Path, Psn, icrc};

    const PATH: Path = Path {
        src: std::net::IpAddr::V4(std::net::Ipv4Addr::new(1, 2, 3, 4)),
        dst: std::net::IpAddr::V4(std::net::Ipv4Addr::new(5, 6, 7, 8)),
        src_port: 50_000,
        traffic_class: 3,
        ip: IpFields::DEFAULT,
    };

    /// The IP packet around a datagram.
    fn ip_around(datagram: &[u8]) -> Vec<u8> {
        let frame = Frame::for_datagram(Mac::default(), Mac::default(), &PATH, 9, datagram);
        let mut bytes = vec![0; frame.length()];
        frame.emit(&mut bytes);
        bytes.split_off(Eth::LEN)
    }

    fn sealed(packet: &Packet<'_>) -> Vec<u8> {
        let mut datagram = vec![0; packet.length()];
        packet.emit(&mut datagram);
        icrc::seal(&PATH, 9, &mut datagram);
        ip_around(&datagram)
    }

    fn ack() -> Packet<'static> {
        Packet {
            bth: Bth {
                opcode: Opcode::RC_ACKNOWLEDGE,
                dest_qp: Qpn::from_wire(17),
                psn: Psn::from_wire(5),
                pkey: DEFAULT_PKEY,
                ..Bth::default()
            },
            aeth: Some(Aeth {
                syndrome: Syndrome::RnrNak { timer: 14 },
                msn: 8,
            }),
            ..Packet::default()
        }
    }

    #[test]
    fn an_acknowledgement_is_told_in_words() {
        let record = examine(1, 0, 0, &sealed(&ack())).expect("it is RoCEv2");
        assert_eq!(
            record.to_string(),
            "     1    0.000000000 1.2.3.4 > 5.6.7.8 RC_ACKNOWLEDGE dest_qp=0x000011 psn=5 \
             payload=0 ce | aeth syndrome='RNR NAK' code=46 wait_us=1280 msn=8 | icrc ok"
        );
    }

    #[test]
    fn a_flipped_bit_is_a_bad_icrc_or_a_malformed_packet() {
        let good = sealed(&ack());
        for bit in 28 * 8..good.len() * 8 {
            // The ICRC does not cover the congestion bits of the BTH.
            if bit / 8 == 32 {
                continue;
            }
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let record = examine(1, 0, 0, &bytes).expect("it is still for the port");
            assert_ne!(record.verdict, Verdict::Ok, "bit {bit}");
        }
    }

    #[test]
    fn packets_cut_short_are_malformed_as_soon_as_they_show_their_port() {
        let good = sealed(&ack());
        for length in 0..good.len() {
            let record = examine(1, 0, 0, &good[..length]);
            let verdict = record.map(|record| record.verdict);
            match length {
                0..24 => assert_eq!(verdict, None, "{length}"),
                _ => assert!(matches!(verdict, Some(Verdict::Malformed(_))), "{length}"),
            }
        }
    }

    #[test]
    fn other_ports_are_not_roce() {
        let mut bytes = sealed(&ack());
        bytes[23] += 1;
        assert_eq!(examine(1, 0, 0, &bytes), None);
    }
}
