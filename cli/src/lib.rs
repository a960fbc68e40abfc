//! The `trunkline` command: what there is to type, and what becomes of errors.
//!
//! It is a library, so that commands can be made which know more kinds of ports
//! ([`PortKind::add_family`](trunkline::PortKind::add_family)).

mod bench;
mod capture;
mod decode;
mod demo;
mod environment;
mod install;
mod interrupt;
mod library;
mod log;
mod look;
mod metrics;
mod namespace;
mod output;
mod port;
mod ports;
mod progress;
mod range;
mod run;
mod runtime;
mod serve;
mod shortage;
mod socket;
mod stat;
mod taken;
mod usage;
mod watch;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use interrupt::{Interrupt, Interrupted};
use run::NotStarted;
use std::io::{Write, stderr};
use std::process::ExitCode;
use usage::UsageError;

/// Exit code of a failure at run time.
const FAILED: u8 = 1;

/// A software RNIC in user space: RDMA queue pairs that share connections, over RoCEv2.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version)]
struct Cli {
    /// Write what nodes of this process meet to standard error [default: warn for serve].
    #[arg(long, value_name = "LEVEL", global = true, display_order = 100)]
    log: Option<log::Level>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run two nodes on loopback addresses: thousands of QPs on a few connections, all checked.
    Demo(demo::DemoArgs),
    /// Measure latency, bandwidth or message rate between two processes or hosts.
    Bench(bench::BenchArgs),
    /// Look at the connection management of a running node.
    Cm(watch::CmArgs),
    /// Show how a running node or service is: programs, peers, rates, drops, connection management.
    Stat(look::LookArgs),
    /// Carry the QPs of other programs of this host, which share the connections to each peer.
    Serve(serve::ServeArgs),
    /// Run a program that was built for libibverbs, on a service that is started if none runs.
    Run(run::RunArgs),
    /// Install this command, the library for verbs programs, and a unit for systemd.
    Install(install::InstallArgs),
    /// Show which kinds of ports an address of this machine can have, and what others lack; with
    /// --measure how fast they are.
    Ports(ports::PortsArgs),
    /// Print the RoCEv2, CM and Trunkline packets of a capture (pcap or pcapng).
    Decode(decode::DecodeArgs),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => exit_code(run(&cli), &usage::words()),
        Err(error) => usage::report(&error, &usage::words()),
    }
}

fn run(cli: &Cli) -> Result<()> {
    // Who looks after a service hears at least of what it cannot do.
    let of_service = matches!(cli.command, Command::Serve(_)).then_some(log::Level::Warn);
    if let Some(level) = cli.log.or(of_service) {
        log::install(level);
    }
    if let Command::Run(args) = &cli.command
        && args.is_at_service()
    {
        return run::run_at_service(args);
    }
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    match &cli.command {
        Command::Demo(args) => demo::run(args, &interrupt),
        Command::Bench(args) => bench::run(args, &interrupt),
        Command::Cm(args) => watch::run(args, &interrupt),
        Command::Stat(args) => stat::run(args, &interrupt),
        Command::Serve(args) => serve::run(args, &interrupt),
        Command::Run(args) => run::run(args, cli.log, &interrupt),
        Command::Install(args) => install::run(args),
        Command::Ports(args) => ports::run(args, &interrupt),
        Command::Decode(args) => decode::run(args, &interrupt),
    }
}

fn exit_code(result: Result<()>, words: &[String]) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
        return ExitCode::from(interrupted.exit_code());
    }
    if let Some(error) = error.downcast_ref::<UsageError>() {
        return usage::refuse(&error.0, words);
    }
    let said = chain(&error);
    print_error(&format!("{said}{}", shortage::remedy(&said)));
    let not_started = error.downcast_ref::<NotStarted>();
    ExitCode::from(not_started.map_or(FAILED, NotStarted::exit_code))
}

/// Causes joined by colons; a cause that the one before has already told is left out.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// One line on standard error, with the name of the command.
fn print_error(text: &str) {
    print_line(&format!("trunkline: {text}"));
}

/// One line on standard error.
fn print_line(text: &str) {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    // Where nobody listens there is nobody to tell.
    let _ = writeln!(stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;
    use clap::{Arg, Command, CommandFactory};
    use std::any::TypeId;
    use std::time::Duration;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The words that a command needs before its options.
    fn needed(command: &str) -> &'static [&'static str] {
        match command {
            "demo" => &["demo"],
            "bench" => &["bench", "lat", "--connect", "127.0.0.1"],
            "watch" => &["cm", "watch"],
            "stat" => &["stat"],
            "serve" => &["serve"],
            "run" => &["run"],
            "ports" => &["ports", "--measure"],
            other => panic!("{other} has numbers, too"),
        }
    }

    /// The words that a command needs behind its options.
    fn behind(command: &str) -> &'static [&'static str] {
        match command {
            "run" => &["true"],
            _ => &[],
        }
    }

    fn is_number(arg: &Arg) -> bool {
        let parsed = arg.get_value_parser().type_id();
        [
            TypeId::of::<u8>(),
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<Duration>(),
        ]
        .iter()
        .any(|number| parsed == *number)
    }

    /// Checks the help of the numbers of a command and of those below it. Returns how many it has.
    fn check_numbers(command: &Command) -> usize {
        let numbers = command.get_arguments().filter(|arg| is_number(arg));
        let own = numbers.map(|arg| {
            let option = format!("--{}", arg.get_long().expect("numbers are options"));
            let help = arg.get_help().expect("it is explained").to_string();
            let range = help
                .split(['(', ')'])
                .find_map(|part| part.split_once("..="));
            let (least, most) = range.unwrap_or_else(|| panic!("{option}: {help}"));
            let parse = |number: &str| {
                let words = [
                    &["trunkline"],
                    needed(command.get_name()),
                    &[&option, number],
                    behind(command.get_name()),
                ];
                Cli::try_parse_from(words.concat())
            };
            let takes = |number: &str| parse(number).is_ok();
            let number = |text: &str| text.parse::<f64>().expect("a bound is a number");
            let (below, above) = (number(least) - 1.0, number(most) + 1.0);
            assert!(takes(least) && takes(most), "{option}: {help}");
            assert!(!takes(&below.to_string()), "{option}: {help}");
            assert!(!takes(&above.to_string()), "{option}: {help}");
            let refused = parse("-7").expect_err("it is negative").to_string();
            let why = format!("-7 is not in {least}..={most}");
            assert!(refused.contains(&why), "{option}: {refused}");
        });
        own.count() + command.get_subcommands().map(check_numbers).sum::<usize>()
    }

    #[test]
    fn the_help_of_each_number_says_what_is_taken() {
        assert_eq!(check_numbers(&Cli::command()), 32);
    }

    #[test]
    fn causes_are_joined_once_each() {
        let error = anyhow!("no such file")
            .context("open x: no such file")
            .context("decode");
        assert_eq!(chain(&error), "decode: open x: no such file");
    }
}
