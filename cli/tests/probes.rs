//! The probes in what was built are those of the documentation, with their arguments.

#![cfg(target_os = "linux")]

use object::elf::{FileHeader64, SHT_NOTE};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, FileKind};
use std::collections::BTreeMap;

/// Type of a SystemTap note of version 3.
const STAPSDT: u32 = 3;

/// A probe as its note has it.
#[derive(Debug, Eq, PartialEq)]
struct Probe {
    arguments: usize,
    has_semaphore: bool,
}

fn text(bytes: &[u8]) -> (String, &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0);
    let (text, rest) = bytes.split_at(end.expect("a note's texts end"));
    (String::from_utf8_lossy(text).into_owned(), &rest[1..])
}

/// The probes of provider `trunkline` in an executable, by name.
fn built() -> BTreeMap<String, Probe> {
    let file = std::fs::read(env!("CARGO_BIN_EXE_trunkline")).expect("it was built");
    let kind = FileKind::parse(&*file).expect("an executable");
    assert_eq!(kind, FileKind::Elf64);
    let header = FileHeader64::<Endianness>::parse(&*file).expect("ELF");
    let endian = header.endian().expect("one or the other");
    let sections = header.sections(endian, &*file).expect("its sections");
    let mut probes = BTreeMap::new();
    for section in sections.iter() {
        let notes = section.notes(endian, &*file).expect("a sound section");
        let Some(mut notes) = notes.filter(|_| section.sh_type(endian) == SHT_NOTE) else {
            continue;
        };
        while let Some(note) = notes.next().expect("a sound note") {
            if note.name() != b"stapsdt" || note.n_type(endian) != STAPSDT {
                continue;
            }
            // Location, base and semaphore go before the texts.
            let (numbers, texts) = note.desc().split_at(24);
            let (provider, texts) = text(texts);
            let (name, texts) = text(texts);
            let (arguments, _) = text(texts);
            if provider == "trunkline" {
                let probe = Probe {
                    arguments: arguments.split_whitespace().count(),
                    has_semaphore: numbers[16..] != [0; 8],
                };
                // What was compiled into several places has several notes.
                if let Some(other) = probes.insert(name.clone(), probe) {
                    assert_eq!(probes[&name], other, "{name}");
                }
            }
        }
    }
    probes
}

/// The table of the documentation: name, and number of arguments.
fn documented() -> BTreeMap<String, Probe> {
    let page = include_str!("../../docs/probes.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, arguments, ..] = cells[..] else {
            panic!("{row}")
        };
        let probe = Probe {
            arguments: arguments.split(',').count(),
            has_semaphore: true,
        };
        (name.trim_matches('`').to_owned(), probe)
    })
    .collect()
}

#[test]
fn the_command_has_the_probes_that_are_documented_and_no_others() {
    let documented = documented();
    assert!(documented.len() >= 13, "{documented:?}");
    assert_eq!(built(), documented);
}
