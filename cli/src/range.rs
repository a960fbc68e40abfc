//! Numbers on the command line: what an option takes, its help says, and so does whoever checks a
//! number that came from elsewhere.

use std::fmt::{self, Display};
use std::time::Duration;

/// The numbers from one to another, both of them included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range<T> {
    least: T,
    most: T,
}

impl<T: Copy + PartialOrd + Display> Range<T> {
    pub(crate) const fn new(least: T, most: T) -> Self {
        Self { least, most }
    }

    /// Returns the largest number.
    pub(crate) const fn most(&self) -> T {
        self.most
    }

    /// Returns a number that is in the range.
    ///
    /// # Errors
    /// It is not: what it is and what the range is.
    pub(crate) fn check(&self, value: T) -> Result<T, String> {
        if self.least <= value && value <= self.most {
            Ok(value)
        } else {
            Err(format!("{value} is not in {self}"))
        }
    }

    /// Returns the help of an option that takes such a number: what it is, the range, and what
    /// else there is to say.
    pub(crate) fn help(&self, what: &str, more: &str) -> String {
        format!("{what} ({self}){more}")
    }
}

impl<T: Display> Display for Range<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.least, self.most)
    }
}

impl Range<u64> {
    /// Returns the parser of a count.
    pub(crate) fn count<T: TryFrom<u64>>(
        self,
    ) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
        move |text| {
            let number = text.parse().map_err(|_| "not a whole number".to_owned())?;
            let number = self.check_signed(number)?;
            T::try_from(number).map_err(|_| format!("{number} is too large"))
        }
    }

    /// Returns the parser of a number of bytes, with a suffix K, M or G for powers of 1024.
    pub(crate) fn bytes(
        self,
    ) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
        move |text| self.check_signed(parse_size(text)?)
    }

    /// Checks a number that may be negative.
    fn check_signed(&self, value: i128) -> Result<u64, String> {
        let number = u64::try_from(value);
        let number = number.map_err(|_| format!("{value} is not in {self}"))?;
        self.check(number)
    }
}

impl Range<f64> {
    /// Returns the parser of a number of seconds, fractions allowed.
    pub(crate) fn seconds(
        self,
    ) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
        move |text| {
            let seconds = text.parse().map_err(|_| "not a number of seconds");
            Ok(Duration::from_secs_f64(self.check(seconds?)?))
        }
    }
}

fn parse_size(text: &str) -> Result<i128, String> {
    let text = text.trim_end_matches(['b', 'B']).trim_end_matches('i');
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: i128 = digits
        .parse()
        .map_err(|_| "not a number of bytes such as 64, 4K or 1M".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too many bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        for (text, bytes) in [
            ("64", 64),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("1M", 1 << 20),
            ("2g", 2 << 30),
            ("8B", 8),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "4Q", "1.5M", "0x10", "é", "4é"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        let parse = Range::new(1, 1 << 30).bytes();
        for (text, number) in [("-1K", "-1024"), ("99999999999G", "107374182398926258176")] {
            assert_eq!(
                parse(text),
                Err(format!("{number} is not in 1..=1073741824"))
            );
        }
    }

    #[test]
    fn seconds_have_fractions_and_bounds() {
        let parse = Range::new(0.0, 60.0).seconds();
        assert_eq!(parse("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "-1", "nan", "inf", "1e9", "1s", "60.1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_are_of_the_range_and_of_their_type() {
        let parse = Range::new(1, 300).count::<u8>();
        assert_eq!(parse("255"), Ok(255));
        for text in ["", "0", "-1", "256", "301", "1.5", "99999999999999999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["301", "-7"] {
            assert_eq!(parse(text), Err(format!("{text} is not in 1..=300")));
        }
    }
}
