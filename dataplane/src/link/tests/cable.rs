//! A device for tests: its frames come out at another one.

use crate::link::device::{Device, Joined, Kicked, Offload, Unit};
use crate::port::PortError;
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// A frame, and what is left to do of it.
type Sent = (Vec<u8>, Option<Offload>);
type Frames = Arc<Mutex<VecDeque<Sent>>>;

/// Most frames on their way.
const ROOM: usize = 4096;

#[derive(Debug)]
pub(super) struct Cable {
    out: Frames,
    arrives: Frames,
    building: Vec<u8>,
    length: usize,
    pushed: Vec<Sent>,
    /// Arrived, and looked for.
    units: VecDeque<Sent>,
    /// Most bytes of a super-packet, if it carries any.
    pub(super) most: Option<usize>,
    pub(super) missed: u64,
    /// What who sleeps waits for, if anybody may: nothing that arrives makes it readable.
    pub(super) silence: Option<UdpSocket>,
}

impl Cable {
    pub(super) fn pair() -> [Self; 2] {
        let (one, other) = (Frames::default(), Frames::default());
        let end = |out: &Frames, arrives: &Frames| Self {
            out: Arc::clone(out),
            arrives: Arc::clone(arrives),
            building: vec![0; 80_000],
            length: 0,
            pushed: Vec::new(),
            units: VecDeque::new(),
            most: None,
            missed: 0,
            silence: None,
        };
        [end(&one, &other), end(&other, &one)]
    }

    /// Sends a frame as somebody else does.
    pub(super) fn put(&mut self, frame: &[u8]) {
        self.put_sent(frame.to_vec(), None);
    }

    /// The same of one that was [taken](Self::take_sent).
    pub(super) fn put_sent(&mut self, frame: Vec<u8>, left: Option<Offload>) {
        frames(&self.out).push_back((frame, left));
    }

    /// The next frame that came, which nobody else gets.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        self.take_sent().map(|(frame, _)| frame)
    }

    /// The same, and what is left to do of it.
    pub(super) fn take_sent(&mut self) -> Option<Sent> {
        frames(&self.arrives).pop_front()
    }

    /// Loses what comes.
    pub(super) fn clear(&mut self) {
        frames(&self.arrives).clear();
    }
}

fn frames(of: &Frames) -> MutexGuard<'_, VecDeque<Sent>> {
    of.lock().unwrap()
}

impl Device for Cable {
    fn max_frame(&self) -> usize {
        9014
    }

    fn max_super_packet(&self) -> Option<usize> {
        self.most
    }

    fn finishes_checksums(&self) -> bool {
        self.most.is_some()
    }

    fn allocate(&mut self, length: usize) -> Option<&mut [u8]> {
        let most = self.max_super_packet().unwrap_or(0).max(self.max_frame());
        assert!(length <= most, "{length} bytes, of {most} at most");
        self.length = length;
        (frames(&self.out).len() + self.pushed.len() < ROOM).then_some(())?;
        Some(&mut self.building[..length])
    }

    fn push(&mut self, left: Option<Offload>) {
        let frame = self.building[..self.length].to_vec();
        self.pushed.push((frame, left));
        // What is sent is whose it is.
        self.building.fill(0xee);
    }

    fn kick(&mut self) -> Result<Kicked, PortError> {
        let joined = |(_, left): &Sent| left.and_then(|left| left.joined);
        let datagrams = |sent| joined(sent).map_or(1, |joined| joined.count.into());
        let sent = self.pushed.iter().map(datagrams).sum();
        frames(&self.out).extend(self.pushed.drain(..));
        Ok(Kicked {
            sent,
            ..Kicked::default()
        })
    }

    fn look(&mut self) -> Result<bool, PortError> {
        self.units.extend(frames(&self.arrives).drain(..));
        Ok(!self.units.is_empty())
    }

    fn front(&self) -> Option<Unit<'_>> {
        self.units.front().map(|(frame, left)| Unit {
            frame,
            segment: left
                .and_then(|left| left.joined)
                .map(|Joined { segment, .. }| segment),
            is_cut: false,
        })
    }

    fn recycle(&mut self) {
        self.units.pop_front();
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.silence.as_ref().map(AsFd::as_fd)
    }

    fn missed(&mut self) -> u64 {
        self.missed
    }
}
