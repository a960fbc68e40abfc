//! `trunkline-fuzz`: says words and bytes to the targets of what a program and its node share,
//! until there were enough of both.

use clap::Parser;
use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use trunkline_fuzz::soak::{Said, Soak};

/// How often it is told how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// What of the run is over when memory is looked at first, as a part of all.
const WARM: u64 = 20;
/// Most bytes by which memory may grow after that.
const MAX_GROWTH: u64 = 1 << 20;

#[derive(Debug, Parser)]
#[command(about = "Says hostile words to rings, and bytes to a service's socket")]
struct Cli {
    /// How many words of rings, and how many bytes of messages, have to be said.
    #[arg(long, value_name = "N", required_unless_present = "input")]
    words: Option<u64>,
    /// What inputs are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Says the input of this number alone.
    #[arg(long, value_name = "N", conflicts_with = "words")]
    input: Option<u64>,
}

thread_local! {
    /// The number of the input that is being said.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let soak = match Soak::new(cli.seed, &corpora) {
        Ok(soak) => soak,
        Err(error) => return failed(format_args!("{}: {error}", corpora.display())),
    };
    let seed = cli.seed;
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        let number = NUMBER.get();
        eprintln!("to see it again: cargo xtask fuzz --seed {seed} --input {number}");
    }));
    if let Some(number) = cli.input {
        let mut said = Said::default();
        say(&soak, number, &mut said);
        tell(seed, 1, &said, 0);
        return ExitCode::SUCCESS;
    }
    run(&soak, seed, cli.words.unwrap_or_default())
}

fn run(soak: &Soak, seed: u64, words: u64) -> ExitCode {
    let (mut said, mut inputs, mut warm) = (Said::default(), 0, 0);
    let mut next = Instant::now() + PROGRESS;
    loop {
        let least = said.ring_words.min(said.control_bytes);
        if warm == 0 && least >= words / WARM {
            warm = most_resident();
        }
        if least >= words {
            break;
        }
        say(soak, inputs, &mut said);
        inputs += 1;
        if Instant::now() > next {
            next += PROGRESS;
            eprintln!("{} % said", least.saturating_mul(100) / words);
        }
    }
    let growth = most_resident() - warm;
    tell(seed, inputs, &said, growth);
    if growth > MAX_GROWTH {
        return failed(format_args!("at most {MAX_GROWTH} bytes are allowed"));
    }
    ExitCode::SUCCESS
}

fn say(soak: &Soak, number: u64, said: &mut Said) {
    NUMBER.set(number);
    soak.say(number, said);
}

fn tell(seed: u64, inputs: u64, said: &Said, growth: u64) {
    println!(
        "seed {seed}, {inputs} inputs: {} words of rings, {} bytes of messages, {} messages \
         well-formed; memory grew by {growth} bytes",
        said.ring_words, said.control_bytes, said.well_formed
    );
}

fn failed(why: std::fmt::Arguments<'_>) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

/// The most bytes that have been resident so far.
fn most_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let most = lines.find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = most.and_then(|most| most.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}
