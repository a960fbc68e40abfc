//! The form of CHANGELOG.md: Keep a Changelog 1.1.

/// The kinds of change the format knows.
const KINDS: &[&str] = &[
    "Added",
    "Changed",
    "Deprecated",
    "Removed",
    "Fixed",
    "Security",
];

/// What is wrong with the text, one line each.
pub(super) fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if text.lines().next() != Some("# Changelog") {
        faults.push("CHANGELOG.md:1: does not start with `# Changelog`".to_owned());
    }
    let mut releases = Vec::new();
    let mut kind = None;
    for (index, line) in text.lines().enumerate() {
        let place = format!("CHANGELOG.md:{}", index + 1);
        if let Some(title) = line.strip_prefix("## ") {
            kind = None;
            match release(title) {
                Some(release) => releases.push((place, release)),
                None => faults.push(format!(
                    "{place}: `{title}` is neither [Unreleased] nor [1.2.3] - 2026-01-31"
                )),
            }
        } else if let Some(title) = line.strip_prefix("### ") {
            if !KINDS.contains(&title) {
                faults.push(format!(
                    "{place}: `{title}` is none of {}",
                    KINDS.join(", ")
                ));
            }
            kind = Some(title);
        } else if line.starts_with("- ") && kind.is_none() {
            faults.push(format!("{place}: an entry outside of Added, Changed, ..."));
        }
    }
    if releases
        .first()
        .is_none_or(|(_, release)| *release != Release::Unreleased)
    {
        faults.push("CHANGELOG.md: the first section is not [Unreleased]".to_owned());
    }
    for pair in releases.windows(2) {
        let [(_, newer), (place, older)] = pair else {
            continue;
        };
        if older >= newer {
            faults.push(format!("{place}: releases are not in descending order"));
        }
    }
    faults
}

/// A heading. Later ones are greater.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Release {
    Version([u32; 3]),
    Unreleased,
}

fn release(title: &str) -> Option<Release> {
    if title == "[Unreleased]" {
        return Some(Release::Unreleased);
    }
    let (version, date) = title.split_once(" - ")?;
    let date = numbers(date, '-', &[4, 2, 2])?;
    let in_range = (1..=12).contains(&date[1]) && (1..=31).contains(&date[2]);
    let version = version.strip_prefix('[')?.strip_suffix(']')?;
    let version = numbers(version, '.', &[0, 0, 0])?;
    in_range.then_some(Release::Version(version))
}

/// Three numbers; a width of 0 is any width.
fn numbers(text: &str, separator: char, widths: &[usize; 3]) -> Option<[u32; 3]> {
    let mut numbers = [0; 3];
    let mut parts = text.split(separator);
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next()?;
        if *width != 0 && part.len() != *width {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n\
        ## [0.2.0] - 2026-03-01\n\n### Fixed\n\n- Another.\n\n## [0.1.0] - 2026-01-31\n";

    #[test]
    fn a_changelog_in_form_has_no_faults() {
        assert_eq!(faults(GOOD), [""; 0]);
    }

    #[test]
    fn each_departure_from_the_form_is_found() {
        for (right, wrong) in [
            ("# Changelog", "# Changes"),
            ("## [Unreleased]\n\n### Added\n\n- A thing.\n\n", ""),
            ("### Added", "### New"),
            ("### Added\n", ""),
            ("2026-03-01", "2026-13-01"),
            ("2026-03-01", "March"),
            ("[0.2.0]", "0.2.0"),
            ("[0.2.0]", "[0.2]"),
            ("[0.2.0]", "[0.0.9]"),
            ("[0.2.0]", "[0.1.0]"),
        ] {
            let text = GOOD.replacen(right, wrong, 1);
            assert_eq!(
                faults(&text).len(),
                1,
                "{right} -> {wrong}: {:?}",
                faults(&text)
            );
        }
    }
}
