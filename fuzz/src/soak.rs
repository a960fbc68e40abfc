//! Inputs without end, made from a seed, for what a program and its node share: rings, and the
//! messages of their socket. A fuzzer looks for new paths; this goes on until a number of words
//! and bytes has been said, and replays any of its inputs by number.

use crate::{host, rings};
use std::path::Path;
use trunkline_testkit::Rng;

/// Longest input, in bytes.
const MAX_BYTES: u64 = 4096;
/// Most changes to an input of the corpus.
const MAX_CHANGES: u64 = 4;

/// The corpora that inputs are made from, and a seed.
#[derive(Debug)]
pub struct Soak {
    seed: u64,
    rings: Vec<Vec<u8>>,
    control: Vec<Vec<u8>>,
}

/// What has been said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Words that a program wrote into its rings past the library.
    pub ring_words: u64,
    /// Bytes of messages, of either side.
    pub control_bytes: u64,
    /// How many of the messages were well-formed, whatever they ask.
    pub well_formed: u64,
}

impl Soak {
    /// Reads the corpora below `folder`.
    ///
    /// # Errors
    /// They cannot be read, or one is empty.
    pub fn new(seed: u64, folder: &Path) -> std::io::Result<Self> {
        Ok(Self {
            seed,
            rings: corpus(&folder.join("rings"))?,
            control: corpus(&folder.join("control"))?,
        })
    }

    /// Makes the input of that number, and says it.
    ///
    /// # Panics
    /// A law of the targets `rings` or `control` is broken.
    pub fn say(&self, number: u64, said: &mut Said) {
        let mut rng = Rng::new(self.seed ^ number.rotate_left(32));
        let mut steps = input(&self.rings, &mut rng);
        fill(&mut steps, MAX_BYTES as usize, &mut rng);
        said.ring_words += rings::scribbled(&steps);
        let message = input(&self.control, &mut rng);
        said.control_bytes += message.len() as u64;
        said.well_formed += u64::from(host::is_well_formed(&message));
    }
}

fn corpus(folder: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let files = std::fs::read_dir(folder)?;
    let mut paths = files
        .map(|file| Ok(file?.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    // In an order that is the same everywhere.
    paths.sort();
    if paths.is_empty() {
        let why = format!("{} is empty", folder.display());
        return Err(std::io::Error::other(why));
    }
    paths.iter().map(std::fs::read).collect()
}

/// Bytes at random, or an input of the corpus with some changes.
fn input(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if rng.below(4) == 0 {
        let mut input = Vec::new();
        fill(&mut input, rng.below(MAX_BYTES) as usize, rng);
        return input;
    }
    let mut input = corpus[rng.below(corpus.len() as u64) as usize].clone();
    for _ in 0..rng.within(1..MAX_CHANGES + 1) {
        change(&mut input, corpus, rng);
    }
    input
}

/// Makes it so long with bytes at random.
fn fill(input: &mut Vec<u8>, length: usize, rng: &mut Rng) {
    while input.len() < length {
        input.extend(rng.next().to_le_bytes());
    }
    input.truncate(length);
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(input.len() as u64 + 1) as usize;
    let bits = rng.below(256) as u8;
    match (rng.below(6), input.get_mut(at)) {
        (0, Some(byte)) => *byte = bits,
        (1, Some(byte)) => *byte ^= 1 << (bits & 7),
        (2, Some(byte)) => *byte = byte.wrapping_add(bits & 7).wrapping_sub(3),
        (3, _) => input.truncate(at),
        (4, _) => input.insert(at, bits),
        _ => {
            let other = &corpus[rng.below(corpus.len() as u64) as usize];
            let from = rng.below(other.len() as u64 + 1) as usize;
            input.truncate(at);
            input.extend(&other[from..]);
            input.truncate(MAX_BYTES as usize);
        }
    }
}
