//! Measures whether an engine that copies would save the CPU time: what the CPU spends on a fused
//! copy and CRC-32, what it would still spend if an engine copied, and what handing a copy to one
//! costs. Prints tables, or JSON with `--json`. `--rounds N` says how often each is measured.
//!
//! The engine is `dma_skeleton`, which copies by a thread on another core. Its cost for whoever
//! hands a copy to it is that of rings between two cores; what a real engine would do is computed
//! (model.rs).

mod arena;
mod measure;
mod model;
mod table;

use arena::{Arena, CASES};
use measure::Measured;
use std::process::ExitCode;
use trunkline_dma::{Dmadev, Offload, set_up};

/// Times each is measured, unless said otherwise.
const ROUNDS: usize = 11;

fn main() -> ExitCode {
    let (json, rounds) = match arguments() {
        Ok(wanted) => wanted,
        Err(said) => {
            eprintln!("error: {said}\nusage: copy-engines [--json] [--rounds N]");
            return ExitCode::FAILURE;
        }
    };
    match run(rounds) {
        Ok(measured) if json => print!("{}", table::json(&measured)),
        Ok(measured) => {
            print!("{}", table::text(&measured));
            print!("{}", model::text(&measured));
        }
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn arguments() -> Result<(bool, usize), String> {
    let (mut json, mut rounds) = (false, ROUNDS);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => json = true,
            "--rounds" => {
                let number = words.next().and_then(|number| number.parse().ok());
                let number = number.filter(|number| *number > 0);
                rounds = number.ok_or("--rounds takes a number above 0")?;
            }
            _ => return Err(format!("{word} is no option")),
        }
    }
    Ok((json, rounds))
}

/// All cases, each measured once a round, so that whatever else the machine does meets all alike.
fn run(rounds: usize) -> Result<Vec<Measured>, Box<dyn std::error::Error>> {
    // The environment's own thread has the core that this measures on, so that those it makes for
    // devices have the others.
    let eal = set_up(&["--lcores=0@0"])?;
    measure::pin(0)?;
    let mut engine = Offload::new(Dmadev::open(eal, "dma_skeleton")?);
    let mut arenas: Vec<_> = CASES.map(Arena::new).into();
    let mut samples: Vec<_> = CASES.map(measure::Samples::new).into();
    for _ in 0..rounds {
        for (arena, samples) in arenas.iter_mut().zip(&mut samples) {
            measure::round(arena, &mut engine, samples)?;
        }
    }
    Ok(samples.into_iter().filter_map(Measured::of).collect())
}
