//! Wrong command lines: one line that says what is wrong and what to type.

use super::{Cli, complain};
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::process::ExitCode;

/// Exit code of a wrong command line.
const WRONG: u8 = 2;

/// A command line that is wrong in a way that the parser of options does not see.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// A [`UsageError`] for a command to return.
pub fn wrong(what: impl Into<String>) -> anyhow::Error {
    UsageError(what.into()).into()
}

/// The words of the command line, without the command.
pub(super) fn words() -> Vec<String> {
    std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Help and version as they are; anything else in one line.
pub(super) fn report(error: &clap::Error, words: &[String]) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // A reader who has seen enough is no reason to complain.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    refuse(&one_line(error), words)
}

/// Says what is wrong with the command line `words`, and what to type.
pub(super) fn refuse(what: &str, words: &[String]) -> ExitCode {
    complain(&format!("{what}; try '{} --help'", command_of(words)));
    ExitCode::from(WRONG)
}

/// The subcommand that was meant, as far as it can be told.
fn command_of(words: &[String]) -> String {
    let cli = Cli::command();
    let known = |word: &&String| {
        cli.get_subcommands()
            .any(|command| command.get_name() == **word)
    };
    let first = words.iter().find(|word| !word.starts_with('-'));
    match first.filter(known) {
        Some(command) => format!("trunkline {command}"),
        None => "trunkline".to_owned(),
    }
}

/// What is wrong.
fn one_line(error: &clap::Error) -> String {
    if error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return condense(&error.render().to_string());
    }
    let cli = Cli::command();
    let names: Vec<_> = cli.get_subcommands().map(clap::Command::get_name).collect();
    format!("no command given: {}", names.join(", "))
}

/// Everything before the usage, in one line.
fn condense(text: &str) -> String {
    let says = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more info");
    let mut condensed = String::new();
    for line in text
        .lines()
        .map(str::trim)
        .take_while(says)
        .filter(|line| !line.is_empty())
    {
        if !condensed.is_empty() {
            condensed.push_str(if line.starts_with("tip:") { "; " } else { " " });
        }
        condensed.push_str(line);
    }
    match condensed.strip_prefix("error: ") {
        Some(rest) => rest.to_owned(),
        None => condensed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn condensed(words: &[&str]) -> String {
        let words = ["trunkline"].iter().chain(words);
        let error = Cli::try_parse_from(words).expect_err("it is wrong");
        one_line(&error)
    }

    #[test]
    fn errors_of_the_parser_become_one_line() {
        assert_eq!(
            condensed(&["decode", "--frobnicate"]),
            "unexpected argument '--frobnicate' found; tip: to pass '--frobnicate' as a value, use \
             '-- --frobnicate'"
        );
        assert_eq!(
            condensed(&["decode"]),
            "the following required arguments were not provided: <FILE>"
        );
        assert_eq!(
            condensed(&["demo", "--qps", "0"]),
            "invalid value '0' for '--qps <QPS>': 0 is not in 1..=200000"
        );
        assert_eq!(condensed(&[]), "no command given: demo, bench, cm, decode");
    }

    #[test]
    fn help_is_of_the_subcommand_that_was_meant() {
        let of = |words: &[&str]| {
            command_of(
                &words
                    .iter()
                    .map(|&word| word.to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&["bench", "lat"]), "trunkline bench");
        assert_eq!(of(&["--verbose", "decode"]), "trunkline decode");
        assert_eq!(of(&["frobnicate", "bench"]), "trunkline");
        assert_eq!(of(&[]), "trunkline");
    }
}
