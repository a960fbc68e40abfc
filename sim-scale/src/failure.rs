//! What a run can end with when it does not end well.

use std::fmt;

/// Kind of failure; its value is the exit code of the command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// Something happened that must not happen.
    Correctness = 1,
    /// The code under test panicked.
    Crash = 101,
    /// Something that must happen did not, in the time it has.
    Liveness = 128,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Correctness => "correctness",
            Self::Crash => "crash",
            Self::Liveness => "liveness",
        }
    }
}

/// A failure, in the words of the model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// What kind.
    pub kind: Kind,
    /// What was expected and what was found.
    pub what: String,
}

impl Failure {
    /// Something that must not happen.
    pub fn wrong(what: impl Into<String>) -> Self {
        Self {
            kind: Kind::Correctness,
            what: what.into(),
        }
    }

    /// Something that did not happen.
    pub fn stuck(what: impl Into<String>) -> Self {
        Self {
            kind: Kind::Liveness,
            what: what.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {}",
            self.kind.name(),
            self.kind as u8,
            self.what
        )
    }
}

impl std::error::Error for Failure {}

/// What checks give.
pub type Verdict = Result<(), Failure>;
