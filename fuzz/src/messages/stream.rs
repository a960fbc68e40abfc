//! Streams: docs/stream-format.md.

use crate::input::Input;
use trunkline::{Completion, Extra, WorkOpcode};

#[allow(dead_code, reason = "its crate uses all of it")]
#[path = "../../../tokio/src/stream/frame.rs"]
mod format;

use format::{Frame, Hello, Kind};

/// A hello and words of messages: what is parsed says what was there and nothing that the format
/// rules out, what is emitted is parsed, and what is refused is refused for a reason.
pub fn stream(data: &[u8]) {
    if let Some(hello) = Hello::parse(data) {
        assert_eq!(hello.emit(), data[..Hello::LENGTH]);
        assert!(can_be(hello), "{hello:?}");
        assert_eq!(Hello::parse(&data[..Hello::LENGTH - 1]), None);
    }
    let mut input = Input::new(data);
    let hello = Hello {
        receives: input.near(1024) as u16,
        bytes: input.near(1 << 20),
    };
    let parsed = Hello::parse(&hello.emit());
    assert_eq!(parsed, can_be(hello).then_some(hello), "{hello:?}");
    input.drive(64, |input| word(&completion(input)));
}

fn can_be(hello: Hello) -> bool {
    (2..=1024).contains(&hello.receives) && (256..=1 << 20).contains(&hello.bytes)
}

/// A message that has come, often one of a stream.
fn completion(input: &mut Input<'_>) -> Completion {
    let choice = input.byte();
    let opcode = match choice & 0x0f {
        0 => WorkOpcode::ReceiveWriteImm,
        1 => WorkOpcode::Send,
        _ => WorkOpcode::Receive,
    };
    let word = match choice >> 7 {
        0 => input.u32(),
        _ => u32::from(input.byte()) << 24 | u32::from(input.u16()),
    };
    let extra = match choice & 0x70 {
        0 => Extra::None,
        _ => Extra::Immediate(word),
    };
    Completion {
        opcode,
        extra,
        byte_len: input.near(0),
        ..Completion::BLANK
    }
}

fn word(received: &Completion) {
    let word = match received.extra {
        Extra::Immediate(word) if received.opcode == WorkOpcode::Receive => word,
        _ => {
            let parsed = Frame::parse(received);
            return assert!(parsed.is_err(), "{parsed:?}");
        }
    };
    let carries = received.byte_len > 0;
    match Frame::parse(received) {
        Ok(frame) => {
            assert_eq!(frame.emit(), word);
            assert_eq!(frame.kind == Kind::Data, carries);
        }
        Err(why) => {
            let mismatch = carries != (word >> 30 == 0);
            assert!(word & 0x3fff_0000 != 0 || mismatch, "{why}: {received:?}");
        }
    }
}
