//! `trunkline decode`: prints what a capture holds of RoCEv2, connection management and Trunkline.

mod capture;
mod cm;
mod link;
mod packet;
mod record;
mod shared;
mod summary;

use super::interrupt::Interrupt;
use super::output;
use anyhow::{Context, Result, bail};
use capture::{Capture, Captured};
use clap::Args;
use link::Network;
use record::Record;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write, stdin};
use std::path::PathBuf;
use summary::Summary;

/// Options of `trunkline decode`.
#[derive(Args, Debug)]
#[command(
    after_help = "Every packet to UDP port 4791 is RoCEv2. It is malformed when its headers, \
    or what it carries for connection management or for Trunkline itself, cannot be read; \
    otherwise \
    its ICRC is right (ok) or wrong (BAD). Other frames are only counted."
)]
pub(crate) struct DecodeArgs {
    /// The capture, pcap or pcapng; - is standard input.
    file: PathBuf,
    /// Print counts instead of packets.
    #[arg(long)]
    summary: bool,
    /// Print JSON: one object a line for each packet, or one object with --summary.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The file cannot be read, is no capture, or is cut off or damaged somewhere: what could be read
/// has been printed then. Or standard output takes nothing.
pub(crate) fn run(args: &DecodeArgs, interrupt: &Interrupt) -> Result<()> {
    output::check()?;
    let name = args.file.display();
    let input: Box<dyn Read> = if args.file.as_os_str() == "-" {
        Box::new(stdin().lock())
    } else {
        Box::new(File::open(&args.file).with_context(|| name.to_string())?)
    };
    let mut capture = Capture::open(input).with_context(|| name.to_string())?;
    let mut decoder = Decoder {
        args,
        out: output::out(),
        summary: Summary::default(),
    };
    let mut reading = Reading::default();
    let read = decoder.frames(&mut capture, &mut reading, interrupt)?;
    decoder.finish()?;
    read.with_context(|| name.to_string())?;
    if !reading.unsupported.is_empty() {
        let links: Vec<_> = reading
            .unsupported
            .iter()
            .map(ToString::to_string)
            .collect();
        bail!(
            "{name}: frames of link type {} were not looked into: Ethernet, Linux cooked \
             and raw IP \
             are supported",
            links.join(", ")
        );
    }
    Ok(())
}

/// What is remembered from frame to frame.
#[derive(Debug, Default)]
struct Reading {
    /// Time of the first frame.
    began_ns: Option<u64>,
    unsupported: BTreeSet<u32>,
}

struct Decoder<'a, W> {
    args: &'a DecodeArgs,
    out: W,
    summary: Summary,
}

impl<W: Write> Decoder<'_, W> {
    /// Prints or counts all frames; gives why there are no more, unless they are at their end.
    ///
    /// # Errors
    /// They cannot be printed.
    fn frames<R: Read>(
        &mut self,
        capture: &mut Capture<R>,
        reading: &mut Reading,
        interrupt: &Interrupt,
    ) -> Result<Result<()>> {
        let done = loop {
            if let Err(interrupted) = interrupt.check() {
                break Err(interrupted.into());
            }
            let frame = match capture.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break Ok(()),
                Err(error) => {
                    let place = format!("after frame {}", self.summary.frames);
                    break Err(anyhow::Error::new(error).context(place));
                }
            };
            self.summary.frames += 1;
            let Some(record) = reading.record(self.summary.frames, &frame) else {
                continue;
            };
            self.summary.count(&record);
            if !self.args.summary {
                print(&mut self.out, self.args.json, &record)?;
            }
        };
        self.out.flush()?;
        Ok(done)
    }

    /// Prints the counts, where they are wanted.
    fn finish(&mut self) -> Result<()> {
        match (self.args.summary, self.args.json) {
            (true, true) => writeln!(self.out, "{}", serde_json::to_string(&self.summary)?)?,
            (true, false) => write!(self.out, "{}", self.summary)?,
            (false, _) => {}
        }
        Ok(self.out.flush()?)
    }
}

fn print(out: &mut impl Write, json: bool, record: &Record) -> Result<()> {
    if json {
        serde_json::to_writer(&mut *out, record).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{record}")?;
    }
    Ok(())
}

impl Reading {
    /// What there is to say of a frame; `None` when it is not RoCEv2.
    fn record(&mut self, number: u64, frame: &Captured<'_>) -> Option<Record> {
        let began = *self.began_ns.get_or_insert(frame.time_ns);
        match link::network(frame.link, &frame.bytes) {
            Network::Ip(ip) => packet::examine(
                number,
                frame.time_ns,
                frame.time_ns.saturating_sub(began),
                ip,
            ),
            Network::Other => None,
            Network::Unsupported => {
                self.unsupported.insert(frame.link);
                None
            }
        }
    }
}
