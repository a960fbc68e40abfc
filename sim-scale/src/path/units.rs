//! Rates, times, sizes and shares as they are typed: `1g`, `2ms`, `250k`, `1%`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use trunkline_conn::time::SECOND;

/// Returns the parser of a whole number in `range`.
pub fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<i128> + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number: i128 = text.parse().map_err(|_| "not a whole number")?;
        let number = T::try_from(number).ok().filter(|n| range.contains(n));
        number.ok_or_else(|| format!("{text} is not in {}..={}", range.start(), range.end()))
    }
}

/// Bits per second: a number, and `k`, `m` or `g` for thousands, millions, milliards of them.
///
/// # Errors
/// What is wrong with it.
pub fn rate(text: &str) -> Result<u64, String> {
    let units = [("k", 1e3), ("m", 1e6), ("g", 1e9), ("", 1.0)];
    scaled(text, &units, "a rate in bits per second such as 100m or 1g")
        .and_then(|bps| within(bps, 1e3, 1e12, text, "between 1k and 1000g"))
}

/// Nanoseconds: a number with `ns`, `us`, `ms` or `s`.
///
/// # Errors
/// What is wrong with it.
pub fn time(text: &str) -> Result<u64, String> {
    let second = SECOND as f64;
    let units = [
        ("ns", 1.0),
        ("us", second / 1e6),
        ("ms", second / 1e3),
        ("s", second),
    ];
    scaled(text, &units, "a time such as 50us, 2ms or 10s")
        .and_then(|ns| within(ns, 0.0, 3600.0 * second, text, "between 0s and 3600s"))
}

/// Bytes: a number, and `k` or `m` for thousands or millions of them.
///
/// # Errors
/// What is wrong with it.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("k", 1e3), ("m", 1e6), ("g", 1e9), ("", 1.0)];
    scaled(text, &units, "a size in bytes such as 30000 or 250k")
        .and_then(|bytes| within(bytes, 0.0, 1e11, text, "between 0 and 100g"))
}

/// A share from 0 to 1, or in percent.
///
/// # Errors
/// What is wrong with it.
pub fn share(text: &str) -> Result<f64, String> {
    let units = [("%", 0.01), ("", 1.0)];
    let share = scaled(text, &units, "a share such as 0.01 or 1%")?;
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else {
        Err(format!("`{text}` is not between 0 and 1"))
    }
}

fn scaled(text: &str, units: &[(&str, f64)], wanted: &str) -> Result<f64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let parsed = units.iter().find_map(|(unit, factor)| {
        let number = lower.strip_suffix(unit)?;
        let digits = number.strip_prefix('-').unwrap_or(number);
        let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let value: f64 = number.parse().ok().filter(|_| plain)?;
        Some(value * factor)
    });
    parsed.ok_or_else(|| format!("`{text}` is not {wanted}"))
}

fn within(value: f64, least: f64, most: f64, text: &str, range: &str) -> Result<u64, String> {
    if (least..=most).contains(&value) {
        Ok(value.round() as u64)
    } else {
        Err(format!("`{text}` is out of range: {range}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_scale_numbers() {
        assert_eq!(rate("1g"), Ok(1_000_000_000));
        assert_eq!(rate("2.5G"), Ok(2_500_000_000));
        assert_eq!(rate("9600"), Ok(9_600));
        assert_eq!(time("50us"), Ok(50_000));
        assert_eq!(time("0.2ms"), Ok(200_000));
        assert_eq!(time("3s"), Ok(3_000_000_000));
        assert_eq!(bytes("250k"), Ok(250_000));
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5"), Ok(0.5));
    }

    #[test]
    fn nonsense_is_refused_with_what_was_wanted() {
        for text in ["", "g", "-1g", "1x", "nan", "inf", "1e3", "0", "2000g"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["5", "ms", "1 hour", "4000s"] {
            assert!(time(text).is_err(), "{text}");
        }
        for said in [
            rate("-1g"),
            time("-2ms"),
            bytes("-5k"),
            share("-1%").map(|_| 0),
        ] {
            let said = said.expect_err("it is negative");
            assert!(said.contains("between "), "{said}");
        }
        assert!(share("1.5").is_err());
        let said = rate("fast").expect_err("no rate");
        assert!(said.contains("`fast`") && said.contains("100m"), "{said}");
    }
}
