//! What requests are answered with.

use crate::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use trunkline_host::control::answers::Failed;
use trunkline_host::control::{Answer, Text};
use trunkline_host::handles::TableFull;
use trunkline_host::pieces::{NewSegment, PieceError};
use trunkline_qpmap::VerbsError;

/// An answer, and what goes with it.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) answer: Answer,
    /// A segment that the answer tells of, whose descriptor goes first.
    pub(super) segment: Option<NewSegment>,
    pub(super) descriptor: Option<Arc<OwnedFd>>,
    /// It refuses what is beyond a limit.
    pub(super) is_beyond_limit: bool,
}

impl<A: Into<Answer>> From<A> for Reply {
    fn from(answer: A) -> Self {
        Self {
            answer: answer.into(),
            segment: None,
            descriptor: None,
            is_beyond_limit: false,
        }
    }
}

/// Why a request is refused; nothing has changed.
#[derive(Debug)]
pub(super) enum Refusal {
    Verbs(VerbsError),
    /// The program, or all of its user, have as much as they may; verbs have no error for it.
    Limit(String),
    /// Verbs have no error for it.
    Other {
        errno: i32,
        text: String,
    },
}

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EFAULT: i32 = 14;

impl Refusal {
    /// There is no object of that name, or another than is meant.
    pub(super) fn unknown(what: &'static str) -> Self {
        VerbsError::InvalidArgument { what }.into()
    }

    /// The memory is not the client's to register.
    pub(super) const fn fault(text: String) -> Self {
        let errno = EFAULT;
        Self::Other { errno, text }
    }

    /// All programs of the user may have `limit` together, and that is taken.
    pub(super) fn user_has_all(what: &str, limit: u64) -> Self {
        Self::Limit(format!(
            "no more {what}: the limit of all programs of the user is {limit}"
        ))
    }

    /// Whether it is for a limit.
    pub(super) const fn is_for_limit(&self) -> bool {
        matches!(self, Self::Limit(_) | Self::Verbs(VerbsError::Limit { .. }))
    }

    /// `renamed`: with the program's names of objects.
    pub(super) fn to_answer(&self, renamed: impl FnOnce(VerbsError) -> VerbsError) -> Answer {
        let failed = match self {
            Self::Verbs(error) => {
                let error = renamed(*error);
                Failed {
                    errno: error.errno().unsigned_abs(),
                    text: Text::clipped(&error.to_string()),
                    error: Some(error.parts().map_text(Text::clipped)),
                }
            }
            Self::Limit(text) => failed(ENOMEM, text),
            Self::Other { errno, text } => failed(*errno, text),
        };
        failed.into()
    }
}

fn failed(errno: i32, text: &str) -> Failed {
    Failed {
        errno: errno.unsigned_abs(),
        text: Text::clipped(text),
        error: None,
    }
}

impl From<VerbsError> for Refusal {
    fn from(error: VerbsError) -> Self {
        Self::Verbs(error)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let errno = match &error {
            Error::Verbs(error) => return Self::Verbs(*error),
            Error::System { source, .. } => source.raw_os_error().unwrap_or(EIO),
            _ => EIO,
        };
        let text = error.to_string();
        Self::Other { errno, text }
    }
}

impl From<PieceError> for Refusal {
    fn from(error: PieceError) -> Self {
        match error {
            PieceError::Shared { limit, .. } => Self::user_has_all("bytes of segments", limit),
            PieceError::Quota { .. } => Self::Limit(error.to_string()),
            _ => Self::Other {
                errno: ENOMEM,
                text: error.to_string(),
            },
        }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Other {
            errno: error.raw_os_error().unwrap_or(EIO),
            text: error.to_string(),
        }
    }
}

/// A table holds as many entries as it may.
impl From<(&'static str, TableFull)> for Refusal {
    fn from((what, full): (&'static str, TableFull)) -> Self {
        match full {
            TableFull::Own { limit } => {
                let limit = limit.into();
                VerbsError::Limit { what, limit }.into()
            }
            TableFull::Shared { limit } => Self::user_has_all(what, limit),
        }
    }
}
