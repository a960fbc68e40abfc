//! The states of a connection of ordinary hosts, each its own type.
//!
//! | state | side | left by |
//! | --- | --- | --- |
//! | `ReqSent` | asking | REP, REJ, tries used up, close |
//! | `Replied` | asking | ready, reject, time to decide, REJ, DREQ, close |
//! | `ReqReceived` | asked | accept, reject, time to decide, REJ, close |
//! | `RepSent` | asked | RTU or first packet, REJ, DREQ, tries used up, close |
//! | `Established` | both | DREQ, REJ, a REQ or REP of the peer's QP for another, close |
//! | `DreqSent` | both | DREP, DREQ, REJ, tries used up |
//! | `TimeWait` | both | time |
//! | `SidrSent` | asking | SIDR_REP, tries used up, close |
//! | `SidrReqReceived` | asked | answer, time to decide |
//! | `SidrDone` | asked | time |

use super::event::CloseReason;
use crate::message::Mad;
use crate::phase::Phase;
use crate::retry::Schedule;
use crate::setup::{Sent, SetupState};
use crate::slots;
use alloc::boxed::Box;
use trunkline_conn::time::Instant;
use trunkline_wire::ServiceId;
use trunkline_wire::cm::Answered as Received;

/// A message of the peer that the node's owner has to decide on.
#[derive(Debug)]
pub(crate) struct Undecided {
    pub(super) transaction: u64,
    /// When the peer is told that it takes time; `None` once it was.
    pub(super) mra_at: Option<Instant>,
    pub(super) decide_by: Instant,
}

impl Undecided {
    fn deadline(&self) -> Instant {
        self.mra_at
            .map_or(self.decide_by, |at| at.min(self.decide_by))
    }
}

/// What the asking end says last. Nobody answers it: that it arrived is seen by what the peer's QP
/// does, which may be nothing for long.
#[derive(Debug)]
pub(crate) struct Confirmation {
    pub(super) transaction: u64,
    pub(super) mad: Mad,
    /// When it is said again unasked; `None` once the peer's QP was heard, or all tries are over.
    pub(super) again: Option<Schedule>,
}

impl Confirmation {
    /// It is due: what is said again, unless that was the last try.
    fn repeat(&mut self, now: Instant, random: u64) -> Option<Mad> {
        self.again = self.again.and_then(|again| again.again(now, random));
        self.again.map(|_| self.mad)
    }
}

/// What is sent again when it turns out to be lost.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(super) transaction: u64,
    pub(super) mad: Mad,
}

/// Where a connection stands.
#[derive(Debug)]
pub(crate) enum State {
    Free,
    ReqSent(Box<Sent>),
    Replied(Box<Undecided>),
    ReqReceived(Box<Undecided>),
    RepSent(Box<Sent>),
    /// The asking end keeps its RTU.
    Established(Option<Box<Confirmation>>),
    DreqSent(Box<Sent>, CloseReason),
    TimeWait {
        until: Instant,
    },
    SidrSent(Box<Sent>),
    SidrReqReceived(Box<Undecided>, ServiceId),
    SidrDone {
        until: Instant,
        answer: Box<Answered>,
    },
}

impl SetupState for State {
    fn phase(&self) -> Phase {
        match self {
            Self::Free => Phase::Gone,
            Self::ReqSent(_) => Phase::ReqSent,
            Self::Replied(_) => Phase::Replied,
            Self::ReqReceived(_) => Phase::ReqReceived,
            Self::RepSent(_) => Phase::RepSent,
            Self::Established(_) => Phase::Established,
            Self::DreqSent(..) => Phase::DreqSent,
            Self::TimeWait { .. } => Phase::TimeWait,
            Self::SidrSent(_) => Phase::SidrSent,
            Self::SidrReqReceived(..) => Phase::SidrReqReceived,
            Self::SidrDone { .. } => Phase::SidrDone,
        }
    }

    fn transaction(&self) -> Option<u64> {
        match self {
            Self::ReqSent(sent)
            | Self::RepSent(sent)
            | Self::DreqSent(sent, _)
            | Self::SidrSent(sent) => Some(sent.transaction),
            Self::Replied(wait) | Self::ReqReceived(wait) | Self::SidrReqReceived(wait, _) => {
                Some(wait.transaction)
            }
            _ => None,
        }
    }

    fn sent(&mut self) -> Option<&mut Sent> {
        match self {
            Self::ReqSent(sent)
            | Self::RepSent(sent)
            | Self::DreqSent(sent, _)
            | Self::SidrSent(sent) => Some(sent),
            _ => None,
        }
    }

    fn may_wait_longer(&self, what: Received) -> bool {
        matches!(
            (self, what),
            (Self::ReqSent(_), Received::Req) | (Self::RepSent(_), Received::Rep)
        )
    }

    /// The RTU is said again, too, though nothing answers it.
    fn repeat(&mut self, now: Instant, random: u64) -> Option<Mad> {
        match self {
            Self::Established(Some(confirmed)) => confirmed.repeat(now, random),
            state => state.sent()?.again(now, random),
        }
    }
}

impl slots::State for State {
    const FREE: Self = Self::Free;

    fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::ReqSent(sent)
            | Self::RepSent(sent)
            | Self::DreqSent(sent, _)
            | Self::SidrSent(sent) => Some(sent.schedule.deadline),
            Self::Replied(wait) | Self::ReqReceived(wait) | Self::SidrReqReceived(wait, _) => {
                Some(wait.deadline())
            }
            Self::Established(confirmed) => {
                let again = confirmed.as_ref()?.again?;
                Some(again.deadline)
            }
            Self::Free | Self::TimeWait { .. } | Self::SidrDone { .. } => None,
        }
    }

    fn boxed_bytes(&self) -> usize {
        match self {
            Self::ReqSent(sent)
            | Self::RepSent(sent)
            | Self::DreqSent(sent, _)
            | Self::SidrSent(sent) => size_of_val(&**sent),
            Self::Replied(undecided)
            | Self::ReqReceived(undecided)
            | Self::SidrReqReceived(undecided, _) => size_of_val(&**undecided),
            Self::Established(confirmed) => confirmed.as_deref().map_or(0, size_of_val),
            Self::SidrDone { answer, .. } => size_of_val(&**answer),
            Self::Free | Self::TimeWait { .. } => 0,
        }
    }

    fn until(&self) -> Option<Instant> {
        match self {
            Self::TimeWait { until } | Self::SidrDone { until, .. } => Some(*until),
            _ => None,
        }
    }
}

impl State {
    /// The peer knows that the connection stands.
    pub(super) fn stop_repeating(&mut self) {
        if let Self::Established(Some(confirmed)) = self {
            confirmed.again = None;
        }
    }

    /// Whether the peer has shown that it reads what is sent to its address.
    pub(super) const fn is_proof(&self) -> bool {
        matches!(self, Self::Replied(_) | Self::Established(_))
    }

    /// Whether a peer's request is under way and not confirmed.
    pub(super) const fn is_half_open(&self) -> bool {
        matches!(
            self,
            Self::ReqReceived(_) | Self::RepSent(_) | Self::SidrReqReceived(..)
        )
    }

    /// Whether a connection of this node's QP may exist at the peer.
    pub(super) const fn is_live(&self) -> bool {
        matches!(
            self,
            Self::Replied(_)
                | Self::ReqReceived(_)
                | Self::RepSent(_)
                | Self::Established(_)
                | Self::DreqSent(..)
        )
    }
}
