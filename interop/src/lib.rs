//! Trunkline against the Linux kernel's soft-RoCE: counterparts of the programs that test RDMA
//! there, and a list of cases that run against a guest. `cargo xtask interop` sets the guest up.
//! A library, so that it runs on ports that other crates bring, too.

mod cm;
mod errors;
mod faulty;
mod guest;
mod local;
mod loss;
mod pair;
mod perftest;
mod pingpong;
mod station;
mod suite;
mod verbs;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use guest::Guest;
use pair::Place;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use trunkline::PortKind;

/// Trunkline against soft-RoCE.
#[derive(Debug, Parser)]
#[command(name = "trunkline-interop")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the list of cases against a guest.
    Suite(Suite),
    /// Print the names of the cases.
    List,
    /// Play with ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong of another host.
    Pingpong {
        /// Our address.
        #[arg(long, default_value = "10.99.0.1")]
        address: IpAddr,
        /// The server's; without it, be the server.
        host: Option<IpAddr>,
        /// What carries our packets.
        #[arg(long, value_name = "KIND", default_value_t)]
        port: PortKind,
        #[command(flatten)]
        game: pingpong::Game,
    },
}

#[derive(Args, Debug)]
struct Suite {
    /// Our IPv4 address and the guest's.
    #[arg(long, num_args = 2, value_names = ["OURS", "GUEST"])]
    #[arg(default_values = ["10.99.0.1", "10.99.0.2"])]
    v4: Vec<IpAddr>,
    /// Our IPv6 address and the guest's; without them nothing runs over IPv6.
    #[arg(long, num_args = 2, value_names = ["OURS", "GUEST"])]
    v6: Vec<IpAddr>,
    /// What carries our packets; may be given several times: then all cases run with each.
    #[arg(long, value_name = "KIND", default_values_t = [PortKind::default()])]
    port: Vec<PortKind>,
    /// The whole matrix.
    #[arg(long)]
    full: bool,
    /// Only cases with this in their name; may be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Write the outcomes to this file, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// All of the program.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Suite(options) => suite(&options),
        Command::List => {
            for case in suite::cases(true, &[]) {
                println!("{}", case.name);
            }
            Ok(true)
        }
        Command::Pingpong {
            address,
            host,
            port,
            game,
        } => {
            let ours = (address, kept(&port));
            let played = match host {
                Some(host) => pingpong::client(ours, host, game),
                None => pingpong::listen(ours, game),
            };
            played.map(|()| true)
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What every case uses, to the end of the program.
fn kept(port: &PortKind) -> &'static PortKind {
    Box::leak(Box::new(port.clone()))
}

fn suite(options: &Suite) -> Result<bool> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signal_hook::consts::TERM_SIGNALS {
        signal_hook::flag::register_conditional_shutdown(*signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(*signal, Arc::clone(&stop))?;
    }
    let [ours, theirs] = options.v4[..] else {
        bail!("--v4 takes two addresses");
    };
    let place = |address, guest, port| Place {
        guest: Guest {
            control: theirs,
            address: guest,
        },
        control: ours,
        address,
        port,
    };
    let mut outcomes = Vec::new();
    for (index, port) in options.port.iter().map(kept).enumerate() {
        let v4 = place(ours, theirs, port);
        if index == 0 {
            v4.guest.start_peer().context("the guest's peer")?;
        }
        let prefix = match port {
            PortKind::Udp => String::new(),
            port => format!("{}/", port.name()),
        };
        let cases = suite::cases(options.full, &options.only);
        outcomes.extend(suite::run(v4, &prefix, cases, &stop));
        if let [ours, theirs] = options.v6[..] {
            let mut cases = suite::cases(options.full, &options.only);
            cases.retain(|case| options.full || case.in_both_families());
            let prefix = format!("{prefix}ipv6/");
            outcomes.extend(suite::run(place(ours, theirs, port), &prefix, cases, &stop));
        }
    }
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_string_pretty(&outcomes)?)?;
    }
    let failed = outcomes.iter().filter(|case| case.error.is_some()).count();
    println!("{} cases, {failed} failed", outcomes.len());
    Ok(failed == 0 && !outcomes.is_empty())
}
