//! What tells this library from others of its name: a note (elf(5)) called `Trunkline`, of type 1,
//! with the version as its text. `trunkline run` and `trunkline install` look for it.

/// Bytes of the name, and of the text.
const NAME: usize = 12;
const TEXT: usize = 16;

#[repr(C, align(4))]
struct Note {
    name_bytes: u32,
    text_bytes: u32,
    kind: u32,
    name: [u8; NAME],
    text: [u8; TEXT],
}

/// Copies a text in front of zeros.
const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let text = text.as_bytes();
    assert!(text.len() < N, "a zero ends it");
    let mut room = [0; N];
    let mut at = 0;
    while at < text.len() {
        room[at] = text[at];
        at += 1;
    }
    room
}

// SAFETY: sections of this name hold notes, which this is.
#[unsafe(link_section = ".note.trunkline")]
#[used]
static NOTE: Note = Note {
    // With the zero that ends it; its room is a multiple of four.
    name_bytes: "Trunkline\0".len() as u32,
    text_bytes: TEXT as u32,
    kind: 1,
    name: padded("Trunkline"),
    text: padded(env!("CARGO_PKG_VERSION")),
};
