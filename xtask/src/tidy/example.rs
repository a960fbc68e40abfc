//! The program in the README is that of the crate's documentation, which is compiled.

/// What differs between the first program of each.
pub(super) fn faults(readme: &str, library: &str) -> Vec<String> {
    let docs = library.lines().map_while(|line| line.strip_prefix("//!"));
    let docs = docs.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let shown = |line: &&str| *line != "#" && !line.starts_with("# ");
    let compiled: Vec<_> = program(docs, "```no_run").filter(shown).collect();
    let told: Vec<_> = program(readme.lines(), "```rust").collect();
    if compiled.is_empty() || told != compiled {
        return vec!["README.md: its program is not that of src/lib.rs".to_owned()];
    }
    Vec::new()
}

/// The lines of the first block that `fence` opens.
fn program<'a>(
    lines: impl Iterator<Item = &'a str>,
    fence: &'static str,
) -> impl Iterator<Item = &'a str> {
    let block = lines.skip_while(move |line| *line != fence).skip(1);
    block.take_while(|line| *line != "```")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_nobody_compiles_is_found() {
        let library = "//! A crate.\n//!\n//! ```no_run\n//! use a::B;\n//!\n//! # fn main() {\n\
                       //! b()?;\n//! # }\n//! ```\n";
        let readme = "# A crate\n```sh\nls\n```\n```rust\nuse a::B;\n\nb()?;\n```\n";
        assert!(faults(readme, library).is_empty());
        let other = readme.replace("b()?", "b()");
        assert_eq!(faults(&other, library).len(), 1);
        assert_eq!(faults("# A crate\n", "//! A crate.\n").len(), 1);
    }
}
