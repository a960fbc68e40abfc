//! Texts of refusals: errors hold them for as long as the program runs.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use trunkline_host::control::Text;

/// Texts that are kept. A service has fewer, and a program holds no more of one that invents some.
const MOST: usize = 256;

/// Instead of those that are not kept.
const OTHER: &str = "object or value";

/// The text for the rest of the program's life.
pub(super) fn kept(text: Text<64>) -> &'static str {
    static TEXTS: Mutex<Texts> = Mutex::new(Texts(BTreeSet::new()));
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts.keep(text)
}

/// Each is in memory once.
struct Texts(BTreeSet<&'static str>);

impl Texts {
    fn keep(&mut self, text: Text<64>) -> &'static str {
        if let Some(kept) = self.0.get(text.as_str()) {
            return kept;
        }
        if self.0.len() == MOST {
            return OTHER;
        }
        let kept = text.as_str().to_owned().leak();
        self.0.insert(kept);
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_texts_are_kept_and_each_once() {
        let mut texts = Texts(BTreeSet::new());
        let mut keep = |number: usize| texts.keep(Text::clipped(&number.to_string()));
        let first = keep(0);
        for number in 1..MOST {
            assert_eq!(keep(number), number.to_string());
        }
        assert_eq!(keep(MOST), OTHER);
        assert_eq!(first, "0");
        assert!(std::ptr::eq(keep(0), first), "it is in memory once");
    }
}
