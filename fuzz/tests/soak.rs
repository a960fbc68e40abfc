//! Laws of the inputs that are made from a seed.

use std::path::Path;
use trunkline_fuzz::soak::{Said, Soak};

fn said(seed: u64, inputs: u64) -> Said {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let soak = Soak::new(seed, &corpora).expect("the corpora are there");
    let mut said = Said::default();
    for number in 0..inputs {
        soak.say(number, &mut said);
    }
    said
}

#[test]
fn a_seed_says_the_same_each_time_and_another_something_else() {
    assert_eq!(said(7, 100), said(7, 100));
    assert_ne!(said(7, 100), said(8, 100));
}

#[test]
fn hostile_words_and_messages_break_no_law() {
    let said = said(1, 20_000);
    // Some of each get as far as to mean something.
    assert!(said.ring_words > 1_000_000, "{said:?}");
    assert!(said.control_bytes > 1_000_000, "{said:?}");
    assert!(said.well_formed > 200, "{said:?}");
}
