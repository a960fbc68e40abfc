//! The table: where keys are, and what a slot looks like.

use bytes::Bytes;
use std::sync::{Arc, Mutex};
use trunkline::Mr;
use trunkline_rpc::Refusal;

const BUCKETS: u64 = 1024;
/// A slot is a checksum (8 bytes), the lengths of key and value (1 each), and both.
pub(crate) const SLOT: usize = 256;
/// A GET reads a bucket, of four slots.
pub(crate) const BUCKET: usize = 4 * SLOT;

/// Bytes of the table.
pub(crate) const BYTES: usize = BUCKETS as usize * BUCKET;

/// FNV-1a: tells where a key is, and whether a slot was read while it was written.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn slot(key: &[u8], value: &[u8]) -> Option<[u8; SLOT]> {
    let lengths = [key.len().try_into().ok()?, value.len().try_into().ok()?];
    let content = [&lengths, key, value].concat();
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(&hash(&content).to_be_bytes());
    slot.get_mut(8..8 + content.len())?
        .copy_from_slice(&content);
    Some(slot)
}

/// Key and value of a slot, both empty where nothing is in it; `None`: it was being written.
pub(crate) fn parse(slot: &[u8]) -> Option<(&[u8], &[u8])> {
    let content = slot.get(8..10 + usize::from(slot[8]) + usize::from(slot[9]))?;
    let whole = slot[..8] == hash(content).to_be_bytes() || slot.iter().all(|byte| *byte == 0);
    whole.then(|| content[2..].split_at(slot[8].into()))
}

pub(crate) fn bucket(key: &[u8]) -> usize {
    (hash(key) % BUCKETS) as usize * BUCKET
}

/// Answers where the table is, or puts what is asked: length of the key, key, value.
pub(crate) fn answer(table: &Mutex<Arc<Mr>>, request: &[u8]) -> Result<Bytes, Refusal> {
    let bad = || Refusal::new(400, "a key is empty, or too long with its value");
    let table = table
        .lock()
        .map_err(|_| Refusal::new(500, "the table is broken"))?;
    let Some((&length, rest)) = request.split_first() else {
        let (addr, rkey) = (table.addr().to_be_bytes(), table.rkey().0.to_be_bytes());
        return Ok([&addr[..], &rkey].concat().into());
    };
    let (key, value) = rest.split_at_checked(length.into()).ok_or_else(bad)?;
    let new = slot(key, value).filter(|_| length > 0).ok_or_else(bad)?;
    for at in (bucket(key)..bucket(key) + BUCKET).step_by(SLOT) {
        let mut old = [0; SLOT];
        table.read(at, &mut old).map_err(|_| bad())?;
        if parse(&old).is_some_and(|(other, _)| other.is_empty() || other == key) {
            table.write(at, &new).map_err(|_| bad())?;
            return Ok(Bytes::new());
        }
    }
    Err(Refusal::new(507, "the bucket of this key is full"))
}
