//! Wrong command lines: one line that says what is wrong and what to type.

use super::{Cli, FAILED, output, print_error};
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::io::{Write, stdout};
use std::process::ExitCode;

/// Exit code of a wrong command line.
const WRONG: u8 = 2;

/// A command line that is wrong in a way that the parser of options does not see.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// A [`UsageError`] for a command to return.
pub(crate) fn wrong(what: impl Into<String>) -> anyhow::Error {
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
        let printed = output::check().and_then(|()| {
            let print = error.print().and_then(|()| stdout().flush());
            print.map_err(output::named)
        });
        return match printed {
            Ok(()) => ExitCode::SUCCESS,
            // A reader who has seen enough is no reason to complain.
            Err(cause) if cause.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(cause) => {
                print_error(&cause.to_string());
                ExitCode::from(FAILED)
            }
        };
    }
    refuse(&one_line(error, words), words)
}

/// Says what is wrong with the command line `words`, and what to type.
pub(super) fn refuse(what: &str, words: &[String]) -> ExitCode {
    print_error(&format!("{what}; try '{} --help'", command_of(words)));
    ExitCode::from(WRONG)
}

/// The subcommand that was meant, as far as it can be told.
fn command_of(words: &[String]) -> String {
    meant(words).1
}

/// The innermost subcommand that the words name, and its name with those around it.
fn meant(words: &[String]) -> (clap::Command, String) {
    let mut command = Cli::command();
    let mut name = "trunkline".to_owned();
    for word in words.iter().filter(|word| !word.starts_with('-')) {
        let Some(inner) = command.find_subcommand(word) else {
            break;
        };
        name = format!("{name} {word}");
        command = inner.clone();
    }
    (command, name)
}

/// What is wrong.
fn one_line(error: &clap::Error, words: &[String]) -> String {
    if error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return condense(&error.render().to_string());
    }
    let (command, _) = meant(words);
    let names = command.get_subcommands().map(clap::Command::get_name);
    let names: Vec<_> = names.collect();
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
        let all = ["trunkline"].iter().chain(words);
        let error = Cli::try_parse_from(all).expect_err("it is wrong");
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        one_line(&error, &words)
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
            "invalid value '0' for '--qps <QPS>': 0 is not in 1..=1000000"
        );
        assert_eq!(
            condensed(&[]),
            "no command given: demo, bench, cm, stat, serve, run, install, ports, decode"
        );
        assert_eq!(condensed(&["cm"]), "no command given: watch");
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
        assert_eq!(of(&["cm", "watch", "127.0.0.1"]), "trunkline cm watch");
        assert_eq!(of(&["frobnicate", "bench"]), "trunkline");
        assert_eq!(of(&[]), "trunkline");
    }
}
