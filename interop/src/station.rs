//! An end of a QP pair, as the tests see it: ours, or the one in the guest.

use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;
use trunkline::{Remote, Rkey, SendFlags, Status, WorkOpcode};

/// Bytes behind every buffer that is used, which nobody may touch.
pub(crate) const MARGIN: usize = 64;
/// How long a completion may take: the guest is emulated, and asks for the rest of megabytes anew
/// with each packet of a READ that was lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What a send request asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Op {
    Send,
    SendImm(u32),
    SendInvalidate(Rkey),
    Write,
    WriteImm(u32),
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

impl Op {
    /// Whether it takes a receive at the other end.
    pub(crate) const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) | Self::WriteImm(_)
        )
    }

    /// What its completion says it was.
    pub(crate) const fn opcode(self) -> WorkOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) => WorkOpcode::Send,
            Self::Write | Self::WriteImm(_) => WorkOpcode::Write,
            Self::Read => WorkOpcode::Read,
            Self::CompareSwap { .. } => WorkOpcode::CompareSwap,
            Self::FetchAdd { .. } => WorkOpcode::FetchAdd,
        }
    }
}

/// A send request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) wr_id: u64,
    pub(crate) op: Op,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) remote: Remote,
    /// Beside [`SendFlags::SIGNALED`].
    pub(crate) flags: SendFlags,
}

/// A completion, with the numbers of verbs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) status: u8,
    pub(crate) opcode: u8,
    pub(crate) length: u32,
    /// Immediate data or invalidated key.
    pub(crate) extra: Option<u32>,
    pub(crate) src_qp: u32,
}

impl Done {
    /// Checks how it ended.
    pub(crate) fn is(&self, wr_id: u64, status: Status) -> Result<()> {
        ensure!(
            (self.wr_id, self.status) == (wr_id, status as u8),
            "request {} ended with status {}, expected {wr_id} with {}",
            self.wr_id,
            self.status,
            status as u8
        );
        Ok(())
    }
}

/// One end: a QP with a completion queue and a buffer of [`size`](Self::size) usable bytes.
pub(crate) trait Station {
    /// For messages.
    fn name(&self) -> &'static str;
    /// Fills a range with what `seed` stands for.
    fn fill(&mut self, offset: usize, length: usize, seed: u64) -> Result<()>;
    /// Compares a range with it.
    fn check(&mut self, offset: usize, length: usize, seed: u64) -> Result<()>;
    /// Writes a word.
    fn put(&mut self, offset: usize, value: u64) -> Result<()>;
    /// Reads a word.
    fn get(&mut self, offset: usize) -> Result<u64>;
    /// How the other end names a place in the buffer.
    fn remote(&self, offset: usize) -> Remote;
    /// Usable bytes of the buffer.
    fn size(&self) -> usize;
    /// Posts a receive.
    fn recv(&mut self, wr_id: u64, offset: usize, length: usize) -> Result<()>;
    /// Posts a send request, signalled.
    fn post(&mut self, post: &Post) -> Result<()>;
    /// The next completion, if one comes in time.
    fn wait(&mut self, limit: Duration) -> Result<Option<Done>>;

    /// The next completion.
    fn next(&mut self) -> Result<Done> {
        let done = self.wait(PATIENCE)?;
        done.with_context(|| format!("no completion at {}", self.name()))
    }

    /// Checks that there is no completion.
    fn silent(&mut self) -> Result<()> {
        if let Some(done) = self.wait(Duration::from_millis(50))? {
            bail!("{} has a completion too many: {done:?}", self.name());
        }
        Ok(())
    }
}

/// The byte at `index` of what `seed` stands for; the peer in the guest has the same.
pub(crate) const fn pattern(seed: u64, index: usize) -> u8 {
    let x = seed
        .wrapping_add(index as u64 >> 3)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ x >> 29) >> (8 * (index & 7))) as u8
}
