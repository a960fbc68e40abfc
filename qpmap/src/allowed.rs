//! What an attribute may be: the check, and the words of the refusal, are made of one thing.

use crate::error::VerbsError;
use core::fmt;

/// What an attribute may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Allowed {
    /// From the first to the second.
    Range(u32, u32),
    /// A power of two, from the first to the second.
    PowerOfTwo(u32, u32),
    /// This or more.
    AtLeast(u64),
}

impl Allowed {
    /// Whether `value` is allowed for the attribute that is called `what`.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`]
    #[inline]
    pub fn check(self, what: &'static str, value: impl Into<u64>) -> Result<(), VerbsError> {
        let value = value.into();
        if self.holds(value) {
            Ok(())
        } else {
            Err(self.refuse(what, value))
        }
    }

    /// The refusal of a value that is not allowed.
    #[cold]
    pub const fn refuse(self, what: &'static str, value: u64) -> VerbsError {
        VerbsError::BadAttribute {
            what,
            value,
            allowed: self,
        }
    }

    #[inline]
    fn holds(self, value: u64) -> bool {
        let within = |least: u32, most: u32| (least.into()..=most.into()).contains(&value);
        match self {
            Self::Range(least, most) => within(least, most),
            Self::PowerOfTwo(least, most) => value.is_power_of_two() && within(least, most),
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(least, most) if least == most => write!(f, "only {least}"),
            Self::Range(least, most) => write!(f, "{least} to {most}"),
            Self::PowerOfTwo(least, most) => write!(f, "a power of two, {least} to {most}"),
            Self::AtLeast(least) => write!(f, "{least} or more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each with what it takes, what it does not take, and how it says so.
    const CASES: &[(Allowed, &[u64], &[u64], &str)] = &[
        (
            Allowed::Range(1, 64),
            &[1, 2, 64],
            &[0, 65, u64::MAX, 1 << 32 | 1],
            "1 to 64",
        ),
        (Allowed::Range(0, 0), &[0], &[1], "only 0"),
        (
            Allowed::PowerOfTwo(64, 256),
            &[64, 128, 256],
            &[0, 32, 65, 512],
            "a power of two, 64 to 256",
        ),
        (
            Allowed::AtLeast(1_000_000),
            &[1_000_000, u64::MAX],
            &[0, 999_999],
            "1000000 or more",
        ),
    ];

    #[test]
    fn a_refusal_says_what_was_said_and_what_may_be() {
        for &(allowed, good, bad, words) in CASES {
            for &value in good {
                assert_eq!(allowed.check("it", value), Ok(()), "{allowed:?}");
            }
            for &value in bad {
                let refused = allowed
                    .check("it", value)
                    .map_err(|error| error.to_string());
                let words = format!("it cannot be {value}: {words}");
                assert_eq!(refused, Err(words), "{allowed:?}");
            }
        }
    }
}
