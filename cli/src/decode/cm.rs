//! Management datagrams on QP 1: the messages of connection management.

use super::record::{Fields, Record, Value, fields};
use std::fmt::Debug;
use trunkline_wire::cm::{CmMad, CommId, Message, Rej, Rep, Req, SidrRep, SidrReq};
use trunkline_wire::{MadHeader, RdmaCmHeader, ServiceId, WireError};

/// Reads a management datagram into `record`.
///
/// # Errors
/// It is no management datagram, or not the message that it says.
pub(crate) fn contents(mad: &[u8], record: &mut Record) -> Result<(), WireError> {
    let (header, _) = MadHeader::read(mad)?;
    if header.class != MadHeader::CLASS_CM {
        let fields = fields! {
            "class": Value::Hex(header.class.into(), 2),
            "method": Value::Hex(header.method.into(), 2),
            "attribute": Value::Hex(header.attribute.into(), 4),
            "transaction": Value::Hex(header.transaction_id, 16),
        };
        record.sections.push(("mad", fields));
        return Ok(());
    }
    let mad = CmMad::parse(mad)?;
    record.cm = Some(mad.message.name());
    let mut fields = fields! { "message": mad.message.name().into() };
    describe(&mad.message, &mut fields);
    fields.add("transaction", Value::Hex(mad.transaction_id, 16));
    record.sections.push(("cm", fields));
    Ok(())
}

fn describe(message: &Message, fields: &mut Fields) {
    match message {
        Message::Req(req) => request(req, fields),
        Message::Rep(rep) => reply(rep, fields),
        Message::Rej(rej) => refusal(rej, fields),
        Message::Mra(mra) => {
            ids(mra.local, mra.remote, fields);
            fields.add("received", words(mra.received));
            fields.add("service_timeout", mra.service_timeout.into());
        }
        Message::Rtu(rtu) => ids(rtu.local, rtu.remote, fields),
        Message::Dreq(dreq) => {
            ids(dreq.local, dreq.remote, fields);
            fields.add("remote_qpn", dreq.remote_qpn.into());
        }
        Message::Drep(drep) => ids(drep.local, drep.remote, fields),
        Message::SidrReq(req) => sidr_request(req, fields),
        Message::SidrRep(rep) => sidr_reply(rep, fields),
        Message::Lap(lap) => {
            ids(lap.local, lap.remote, fields);
            fields.add("remote_qpn", lap.remote_qpn.into());
            fields.add("alternate", lap.alternate.remote_gid.to_string().into());
        }
        Message::Apr(apr) => {
            ids(apr.local, apr.remote, fields);
            fields.add("status", words(apr.status));
            fields.add("code", apr.status.code().into());
        }
    }
}

fn id(id: CommId) -> Value {
    Value::Hex(id.0.into(), 8)
}

fn ids(local: CommId, remote: CommId, fields: &mut Fields) {
    fields.add("local", id(local));
    fields.add("remote", id(remote));
}

fn request(req: &Req, fields: &mut Fields) {
    fields.add("local", id(req.local));
    service(req.service_id, &req.private_data.0, fields);
    fields.add("qpn", req.qpn.into());
    fields.add("starting_psn", req.starting_psn.get().into());
    fields.add("transport", words(req.service));
    // Codes 1 to 5 stand for 256 to 4096 bytes.
    let mtu = if (1..=5).contains(&req.path_mtu) {
        128 << req.path_mtu
    } else {
        0_u32
    };
    fields.add("mtu", mtu.into());
    fields.add("responder_resources", req.responder_resources.into());
    fields.add("initiator_depth", req.initiator_depth.into());
    fields.add("retry_count", req.retry_count.into());
    fields.add("rnr_retry_count", req.rnr_retry_count.into());
}

fn reply(rep: &Rep, fields: &mut Fields) {
    ids(rep.local, rep.remote, fields);
    fields.add("qpn", rep.qpn.into());
    fields.add("starting_psn", rep.starting_psn.get().into());
    fields.add("responder_resources", rep.responder_resources.into());
    fields.add("initiator_depth", rep.initiator_depth.into());
    fields.add("rnr_retry_count", rep.rnr_retry_count.into());
}

fn refusal(rej: &Rej, fields: &mut Fields) {
    ids(rej.local, rej.remote, fields);
    fields.add("refused", words(rej.refused));
    fields.add("reason", words(rej.reason));
    fields.add("code", rej.reason.code().into());
}

fn sidr_request(req: &SidrReq, fields: &mut Fields) {
    fields.add("request", id(req.request));
    service(req.service_id, &req.private_data.0, fields);
}

fn sidr_reply(rep: &SidrRep, fields: &mut Fields) {
    fields.add("request", id(rep.request));
    fields.add("status", words(rep.status));
    fields.add("qpn", rep.qpn.into());
    fields.add("qkey", Value::Hex(rep.qkey.into(), 8));
    service(rep.service_id, &[], fields);
}

/// A service, and who asks for it where the RDMA connection manager says so.
fn service(service: ServiceId, private_data: &[u8], fields: &mut Fields) {
    fields.add("service_id", Value::Hex(service.0, 16));
    let Some((protocol, port)) = service.ip_port() else {
        return;
    };
    fields.add("protocol", protocol.into());
    fields.add("port", port.into());
    if let Ok((header, _)) = RdmaCmHeader::read(private_data) {
        let (from, to) = header.addresses.pair();
        fields.add("from", format!("{from}:{}", header.src_port).into());
        fields.add("to", to.to_string().into());
    }
}

/// The name of a variant in words: `InvalidServiceId` is `invalid service id`.
fn words(variant: impl Debug) -> Value {
    let mut text = String::new();
    for letter in format!("{variant:?}").chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.extend(letter.to_lowercase());
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::cm::{Answered, RejReason};

    #[test]
    fn names_become_words() {
        assert_eq!(
            words(RejReason::InvalidServiceId),
            "invalid service id".to_owned().into()
        );
        assert_eq!(words(Answered::Req), "req".to_owned().into());
        assert_eq!(
            words(RejReason::Reserved(99)),
            "reserved(99)".to_owned().into()
        );
    }

    #[test]
    fn a_refusal_is_told_with_its_reason() {
        let rej = Rej::new(
            CommId(1),
            CommId(2),
            Answered::Req,
            RejReason::ConsumerDefined,
        );
        let mut fields = Fields::default();
        describe(&rej.into(), &mut fields);
        assert_eq!(
            fields.to_string(),
            "local=0x00000001 remote=0x00000002 refused=req reason='consumer defined' code=28"
        );
    }
}
