//! Why packets were dropped, and counts of everything else worth seeing.

use crate::host::ReceivesInError;

/// Why a packet was not acted on. Each has its counter in [`Stats`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[repr(u8)]
pub enum Dropped {
    /// Another QP.
    #[error("the packet is for another QP")]
    WrongQp,
    /// Another partition.
    #[error("the packet belongs to another partition")]
    WrongPartition,
    /// Not an opcode of this transport.
    #[error("the opcode does not belong to this transport")]
    WrongTransport,
    /// The QP is in the error state.
    #[error("the QP is in the error state")]
    QpInError,
    /// A packet before it is missing: a NAK asks for that one.
    #[error("a packet before it is missing")]
    PsnGap,
    /// Seen before, and there is nothing (more) to say to it.
    #[error("a duplicate that needs no answer")]
    Duplicate,
    /// No receive was posted: the requester is told to wait.
    #[error("no receive was posted")]
    ReceiverNotReady,
    /// The request breaks a rule: refused, and the QP is in error.
    #[error("the request breaks a rule")]
    Refused,
    /// The request asks for memory it may not have: refused, and the QP is in error.
    #[error("the request asks for memory it may not have")]
    AccessDenied,
    /// A response to something acknowledged long ago.
    #[error("the response is old")]
    StaleResponse,
    /// A response to something that was never asked.
    #[error("the response answers nothing that was sent")]
    UnexpectedResponse,
    /// Responses before it are missing: the request is repeated.
    #[error("responses before it are missing")]
    MissingResponse,
    /// A response that contradicts its request: the QP is in error.
    #[error("the response contradicts its request")]
    BadResponse,
    /// UD: the Q_Key is not that of the QP.
    #[error("the Q_Key is wrong")]
    WrongQkey,
    /// UC and UD: the message does not fit its receive.
    #[error("the message does not fit its receive")]
    TooLong,
    /// UC: the rest of a message of which a part was lost.
    #[error("a part of its message was lost")]
    PartialMessage,
    /// UC and UD: local memory cannot be used.
    #[error("the receive names memory that cannot be used")]
    LocalMemory,
    /// The QP needed a receive, and its receive queue or SRQ is in error.
    #[error("the receive queue is in error")]
    ReceivesInError,
}

impl From<ReceivesInError> for Dropped {
    fn from(_: ReceivesInError) -> Self {
        Self::ReceivesInError
    }
}

impl Dropped {
    /// UC and UD: whether the QP is over with it. Nothing that comes later could be received, and
    /// nobody would hear why.
    pub(crate) const fn ends_qp(self) -> bool {
        matches!(self, Self::LocalMemory | Self::ReceivesInError)
    }

    /// How many reasons there are.
    pub const COUNT: usize = Self::ReceivesInError as usize + 1;
}

/// Counters of a connection. They wrap after 2^64.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stats {
    /// Datagrams handed to the port.
    pub sent_packets: u64,
    /// Their bytes, BTH to ICRC.
    pub sent_bytes: u64,
    /// Datagrams acted on.
    pub received_packets: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Times the ACK timer ran out.
    pub timeouts: u64,
    /// Requests repeated because responses were missing.
    pub implied_naks: u64,
    /// NAKs for a missing packet that came.
    pub sequence_naks_received: u64,
    /// And that went.
    pub sequence_naks_sent: u64,
    /// RNR NAKs that came.
    pub rnr_naks_received: u64,
    /// And that went.
    pub rnr_naks_sent: u64,
    /// Requests seen before, and answered again.
    pub duplicates: u64,
    /// Packets that came with a congestion mark.
    pub marked: u64,
    /// Congestion notifications that came.
    pub cnps_received: u64,
    /// And that went.
    pub cnps_sent: u64,
    dropped: [u64; Dropped::COUNT],
}

impl Stats {
    /// Packets dropped for `reason`.
    pub const fn dropped(&self, reason: Dropped) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Counts a packet that came by what became of it, and passes that on.
    pub(crate) fn judged(&mut self, verdict: Result<(), Dropped>) -> Result<(), Dropped> {
        match verdict {
            Ok(()) => self.received_packets += 1,
            Err(reason) => self.dropped[reason as usize] += 1,
        }
        verdict
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent_packets += 1;
        self.sent_bytes += bytes as u64;
    }
}
