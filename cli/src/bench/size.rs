//! Numbers of bytes and seconds on the command line.

use std::time::Duration;

/// Longest time that can be asked for: a week.
pub(crate) const MAX_SECONDS: f64 = 7.0 * 86_400.0;

/// Bytes, with a suffix K, M or G for powers of 1024.
///
/// # Errors
/// What is wrong, for the user.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim_end_matches(['b', 'B']).trim_end_matches('i');
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "not a number of bytes such as 64, 4K or 1M".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too many bytes".to_owned())
}

/// Seconds, fractions allowed.
///
/// # Errors
/// What is wrong, for the user.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=MAX_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        Ok(_) => Err(format!("not in 0..={MAX_SECONDS} seconds")),
        Err(_) => Err("not a number of seconds".to_owned()),
    }
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
        for text in [
            "",
            "K",
            "4Q",
            "-1",
            "1.5M",
            "0x10",
            "99999999999999G",
            "é",
            "4é",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_have_fractions_and_bounds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "-1", "nan", "inf", "1e9", "1s"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
