//! Parts of a benchmark that run in processes of their own: this program again, with a hidden
//! command.

use crate::{connect, delay, link, resident, rpc, send64, served, udp};
use anyhow::Result;
use clap::Subcommand;

/// What a process of its own does.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Makes two namespaces, and removes them when its standard input ends.
    #[command(hide = true)]
    Guard(link::GuardArgs),
    /// Moves frames between two interfaces, each after a time.
    #[command(hide = true)]
    Delay(delay::DelayArgs),
    /// Connects QPs and says what they take.
    #[command(hide = true)]
    Resident(resident::PartArgs),
    /// Opens connections and says how long it took.
    #[command(hide = true)]
    Connect(connect::ConnectArgs),
    /// Is one end of a link.
    #[command(hide = true)]
    Peer(udp::PeerArgs),
    /// Sends or receives messages.
    #[command(hide = true)]
    Send64(send64::SendArgs),
    /// Calls or answers.
    #[command(hide = true)]
    Rpc(rpc::RpcArgs),
    /// Is a program of a service.
    #[command(hide = true)]
    Served(served::ClientArgs),
}

impl Part {
    /// Does it.
    ///
    /// # Errors
    /// Whatever went wrong.
    pub fn run(&self) -> Result<()> {
        match self {
            Self::Guard(arguments) => link::guard(arguments),
            Self::Delay(arguments) => delay::run(arguments),
            Self::Resident(arguments) => resident::part(arguments),
            Self::Connect(arguments) => connect::part(arguments),
            Self::Peer(arguments) => udp::peer(arguments),
            Self::Send64(arguments) => send64::part(arguments),
            Self::Rpc(arguments) => rpc::part(arguments),
            Self::Served(arguments) => served::part(arguments),
        }
    }
}
