//! What the packets of Trunkline's shared connections carry beside users' data.

use super::packet::syndrome_fields;
use super::record::{Fields, Value, fields};
use trunkline_wire::{
    AckPayload, Answer, Close, Control, ControlKind, Operation, PackedRecord, Packet, Record,
    Records, SrcExt, WireError,
};

/// Reads the payload where it is the connection's own.
///
/// # Errors
/// It is not what the opcode says.
pub(crate) fn contents(
    packet: &Packet<'_>,
    sections: &mut Vec<(&'static str, Fields)>,
) -> Result<(), WireError> {
    let (opcode, Some(ext)) = (packet.opcode(), &packet.ext) else {
        return Ok(());
    };
    let section = match opcode.operation() {
        Some(Operation::Answers) => ("answers", answers(packet.payload)?),
        Some(Operation::Control) => ("control", control(packet.payload)?),
        Some(Operation::Acknowledge) => ("received", acknowledgement(ext, packet.payload)?),
        Some(Operation::Close) => {
            let (Close(reason), _) = Close::read(packet.payload)?;
            ("close", fields! { "reason": reason.into() })
        }
        Some(Operation::AtomicResponse) => ("result", result(packet.payload)),
        Some(Operation::Packed) => ("records", records(packet.payload)?),
        _ => return Ok(()),
    };
    sections.push(section);
    Ok(())
}

fn result(payload: &[u8]) -> Fields {
    // The parser of datagrams holds them to 8 bytes.
    let original = payload
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes));
    fields! { "original": Value::Hex(original, 16) }
}

/// What messages share a packet: which they are, not their data.
fn records(payload: &[u8]) -> Result<Fields, WireError> {
    let entry = |record: PackedRecord<'_>| {
        let header = Record::parse(record.header)?;
        let mut entry = fields! {
            "opcode": header.opcode.name().into(),
            "src_qp": header.src_qp.into(),
            "to_qp": header.dest_qp.into(),
            "msn": header.msn.into(),
            "generation": header.generation.into(),
            "replay_epoch": header.replay_epoch.into(),
            "length": header.length.into(),
        };
        if header.abort {
            entry.add("abort", true.into());
        }
        match header.opcode.operation() {
            Some(Operation::Answers) => entry.0.extend(answers(record.payload)?.0),
            Some(Operation::Control) => entry.0.extend(control(record.payload)?.0),
            _ => {}
        }
        Ok(entry)
    };
    let entries = Records::of(payload).map(|record| record.and_then(entry));
    let entries: Result<Vec<_>, WireError> = entries.collect();
    Ok(fields! { "entries": Value::List(entries?) })
}

fn answers(payload: &[u8]) -> Result<Fields, WireError> {
    let entry = |answer: Answer| {
        let mut entry = fields! { "qp": answer.requester.into(), "by": answer.responder.into() };
        entry.0.extend(syndrome_fields(answer.syndrome).0);
        entry.add("msn", answer.msn.into());
        entry.add("generation", answer.generation.into());
        entry.add("replay_epoch", answer.replay_epoch.into());
        entry
    };
    let entries: Result<Vec<_>, _> = Answer::entries(payload)?
        .map(|answer| answer.map(entry))
        .collect();
    Ok(fields! { "entries": Value::List(entries?) })
}

fn control(payload: &[u8]) -> Result<Fields, WireError> {
    let entry = |control: Control| {
        let kind = match control.kind {
            ControlKind::Bind => "BIND",
            ControlKind::Bound => "BOUND",
            ControlKind::Refused => "REFUSED",
            ControlKind::Unbind => "UNBIND",
        };
        let mut entry = fields! {
            "kind": kind.into(),
            "src_qp": control.src_qp.into(),
            "to_qp": control.dest_qp.into(),
            "msn": control.msn.into(),
            "generation": control.generation.into(),
            "replay_epoch": control.replay_epoch.into(),
        };
        if control.status != 0 {
            entry.add("status", control.status.into());
        }
        entry
    };
    let entries: Result<Vec<_>, _> = Control::entries(payload)?
        .map(|control| control.map(entry))
        .collect();
    Ok(fields! { "entries": Value::List(entries?) })
}

fn acknowledgement(ext: &SrcExt, payload: &[u8]) -> Result<Fields, WireError> {
    let ack = AckPayload::parse(payload)?;
    let mut fields = fields! {
        "below": ext.ack.into(),
        "ce_count": ack.ce_count.into(),
        "delay_ns": ack.delay_ns.into(),
    };
    let ranges = ranges(ext.ack.wrapping_add(1), ack.words());
    if !ranges.is_empty() {
        fields.add("and", ranges.into());
    }
    Ok(fields)
}

/// The packet numbers of a bitmap that begins with `first`, as `a-b,c`: low 32 bits, wrapping.
fn ranges(first: u32, words: impl Iterator<Item = u64>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for word in words {
        let mut number = first.wrapping_add((word >> AckPayload::BITS) as u32 * AckPayload::BITS);
        for bit in 0..AckPayload::BITS {
            if word >> bit & 1 == 1 {
                match ranges.last_mut() {
                    Some((_, last)) if last.wrapping_add(1) == number => *last = number,
                    _ => ranges.push((number, number)),
                }
            }
            number = number.wrapping_add(1);
        }
    }
    let text = |&(a, b): &(u32, u32)| {
        if a == b {
            a.to_string()
        } else {
            format!("{a}-{b}")
        }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::{Bth, Opcode, Qpn, Syndrome};

    fn describe_payload(opcode: Opcode, payload: &[u8]) -> Result<String, WireError> {
        let packet = Packet {
            bth: Bth {
                opcode,
                ..Bth::default()
            },
            ext: Some(SrcExt {
                ack: 10,
                ..SrcExt::default()
            }),
            payload,
            ..Packet::default()
        };
        let mut sections = Vec::new();
        contents(&packet, &mut sections)?;
        let texts: Vec<_> = sections
            .iter()
            .map(|(name, fields)| format!("{name} {fields}"))
            .collect();
        Ok(texts.join(" | "))
    }

    #[test]
    fn bitmaps_are_told_as_ranges() {
        assert_eq!(
            ranges(11, [0b1011_u64, 1 | 1 << 48].into_iter()),
            "11-12,14,59"
        );
        assert_eq!(ranges(u32::MAX, [0b11].into_iter()), "4294967295-0");
        let all = u64::MAX >> 16;
        assert_eq!(ranges(5, [all, all | 1 << 48].into_iter()), "5-100");
        assert_eq!(ranges(5, [0].into_iter()), "");
    }

    #[test]
    fn acknowledgements_tell_what_arrived() {
        let mut payload = [0; 16];
        AckPayload::emit(3, 250, &[1], &mut payload);
        let text = describe_payload(Opcode::SRC_ACK, &payload).expect("it is well formed");
        assert_eq!(text, "received below=10 ce_count=3 delay_ns=250 and=11");
        assert!(describe_payload(Opcode::SRC_ACK, &payload[..15]).is_err());
    }

    #[test]
    fn answers_and_control_entries_are_listed() {
        let answer = Answer {
            requester: Qpn::from_wire(2),
            syndrome: Syndrome::Nak(trunkline_wire::NakCode::RemoteAccess),
            msn: 4,
            generation: 5,
            replay_epoch: 6,
            responder: Qpn::from_wire(3),
        };
        let text =
            describe_payload(Opcode::SRC_ANSWERS, &answer.to_bytes()).expect("it is well formed");
        assert_eq!(
            text,
            "answers entries=[qp=0x000002 by=0x000003 syndrome='NAK remote access error' code=98 \
             msn=4 generation=5 replay_epoch=6]"
        );
        let control = Control {
            kind: ControlKind::Refused,
            src_qp: Qpn::from_wire(2),
            replay_epoch: 6,
            dest_qp: Qpn::from_wire(3),
            generation: 5,
            status: 7,
            msn: 4,
        };
        let text =
            describe_payload(Opcode::SRC_CONTROL, &control.to_bytes()).expect("it is well formed");
        assert_eq!(
            text,
            "control entries=[kind=REFUSED src_qp=0x000002 to_qp=0x000003 msn=4 generation=5 \
             replay_epoch=6 status=7]"
        );
        assert!(describe_payload(Opcode::SRC_ANSWERS, &[0; 17]).is_err());
        assert!(describe_payload(Opcode::SRC_CONTROL, &[9; 20]).is_err());
    }

    #[test]
    fn what_shares_a_packet_is_listed() {
        let answer = Answer {
            requester: Qpn::from_wire(2),
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 4,
            generation: 5,
            replay_epoch: 6,
            responder: Qpn::from_wire(3),
        };
        let record = |opcode, length| Record {
            opcode,
            solicited: false,
            abort: false,
            generation: 5,
            src_qp: Qpn::from_wire(2),
            replay_epoch: 6,
            dest_qp: Qpn::from_wire(3),
            msn: 7,
            offset: 0,
            length,
        };
        let send = record(Opcode::SRC_SEND, 2).to_bytes();
        let answers = record(Opcode::SRC_ANSWERS, 16).to_bytes();
        let payload = [&send[..], &[1, 2], &answers, &answer.to_bytes(), &[0; 30]].concat();
        let text = describe_payload(Opcode::SRC_PACKED, &payload).expect("it is well formed");
        assert_eq!(
            text,
            "records entries=[opcode=SRC_SEND src_qp=0x000002 to_qp=0x000003 msn=7 generation=5 \
             replay_epoch=6 length=2][opcode=SRC_ANSWERS src_qp=0x000002 to_qp=0x000003 msn=7 \
             generation=5 replay_epoch=6 length=16 entries=[qp=0x000002 by=0x000003 \
             syndrome=ACK code=31 credits=31 msn=4 \
             generation=5 replay_epoch=6]]"
        );
        assert!(describe_payload(Opcode::SRC_PACKED, &payload[..50]).is_err());
    }

    #[test]
    fn results_and_reasons_are_told_and_users_data_is_not() {
        let text = describe_payload(Opcode::SRC_ATOMIC_RESP, &[0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(text.as_deref(), Ok("result original=0x0000000000000102"));
        assert_eq!(
            describe_payload(Opcode::SRC_CLOSE, &[0, 0, 0, 9]).as_deref(),
            Ok("close reason=9")
        );
        assert_eq!(
            describe_payload(Opcode::SRC_SEND, b"secret").as_deref(),
            Ok("")
        );
    }
}
