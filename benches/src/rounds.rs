//! Rounds of a figure and of its yardstick, by turns, so that a machine that slows down slows both.

/// Runs `a` and `b` by turns and gives the medians.
///
/// # Errors
/// The first error of either.
///
/// # Panics
/// Without rounds.
pub fn alternate<E>(
    rounds: usize,
    mut a: impl FnMut() -> Result<f64, E>,
    mut b: impl FnMut() -> Result<f64, E>,
) -> Result<(f64, f64), E> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        first.push(a()?);
        second.push(b()?);
    }
    Ok((median(&mut first), median(&mut second)))
}

/// The middle value; of an even number, the upper one of the two in the middle. Sorts.
///
/// # Panics
/// Without values.
pub fn median(values: &mut [f64]) -> f64 {
    percentile(values, 50)
}

/// The value that `percent` of a hundred are below. Sorts.
///
/// # Panics
/// Without values.
pub fn percentile(values: &mut [f64], percent: usize) -> f64 {
    assert!(!values.is_empty(), "no values");
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [7.0]), 7.0);
    }

    #[test]
    fn the_99th_percentile_of_a_hundred_values_is_the_last() {
        let mut values: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(percentile(&mut values, 99), 99.0);
        assert_eq!(percentile(&mut values, 100), 99.0);
    }

    #[test]
    fn rounds_take_turns() {
        let log = std::cell::RefCell::new(String::new());
        let step = |what: char, value: f64| {
            log.borrow_mut().push(what);
            Ok::<_, ()>(value)
        };
        let medians = alternate(3, || step('a', 1.0), || step('b', 2.0));
        assert_eq!(medians, Ok((1.0, 2.0)));
        assert_eq!(*log.borrow(), "ababab");
    }

    #[test]
    fn the_first_error_ends_it() {
        assert_eq!(alternate(3, || Ok(1.0), || Err("no")), Err("no"));
    }
}
