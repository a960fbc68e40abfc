//! The two processes, each one thread that runs a tokio runtime.

use super::load::{Found, cpu_ns, round};
use super::tcp::{self, Raw};
use super::{grpc, ours};
use crate::cpus::stay_on;
use crate::process::Parent;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::task::spawn_blocking;

/// Descriptors beside those of connections.
const DESCRIPTORS: u64 = 64;
/// Before anything counts.
const WARM_UP: Duration = Duration::from_millis(100);

/// Arguments of a process at one end.
#[derive(Args, Clone, Debug)]
pub struct RpcArgs {
    /// What carries messages.
    #[arg(value_enum)]
    over: Over,
    /// Connections or QPs.
    #[arg(long)]
    connections: usize,
    /// The CPU that it stays on.
    #[arg(long)]
    cpu: usize,
    #[command(subcommand)]
    end: End,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum End {
    /// Answers.
    Server {
        /// Where.
        address: IpAddr,
    },
    /// Calls.
    Client {
        /// Its own address.
        address: IpAddr,
        /// Where the server is.
        server: SocketAddr,
        /// Calls under way.
        #[arg(long)]
        under_way: usize,
        /// Length of a round.
        #[arg(long)]
        seconds: f64,
    },
}

/// What carries messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Over {
    /// Calls over Trunkline.
    Trunkline,
    /// Calls over TCP.
    Tcp,
    /// Bytes over TCP, with no calls.
    Raw,
    /// Calls of gRPC over Trunkline.
    Grpc,
    /// Calls of gRPC over TCP.
    GrpcTcp,
    /// A stream of gRPC over Trunkline.
    Stream,
    /// A stream of gRPC over TCP.
    StreamTcp,
}

impl Over {
    /// The word on the command line.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Trunkline => "trunkline",
            Self::Tcp => "tcp",
            Self::Raw => "raw",
            Self::Grpc => "grpc",
            Self::GrpcTcp => "grpc-tcp",
            Self::Stream => "stream",
            Self::StreamTcp => "stream-tcp",
        }
    }

    /// What its figures are compared with.
    pub(super) const fn yardstick(self) -> Option<Self> {
        match self {
            Self::Trunkline | Self::Raw => Some(Self::Tcp),
            Self::Grpc => Some(Self::GrpcTcp),
            Self::Stream => Some(Self::StreamTcp),
            Self::Tcp | Self::GrpcTcp | Self::StreamTcp => None,
        }
    }
}

/// One end.
///
/// # Errors
/// Whatever went wrong.
pub fn part(arguments: &RpcArgs) -> Result<()> {
    stay_on(arguments.cpu)?;
    allow_descriptors(arguments.connections as u64 + DESCRIPTORS)?;
    let parent = Parent::new();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    match arguments.end {
        End::Server { address } => runtime.block_on(serve(parent, arguments, address)),
        End::Client {
            address,
            server,
            under_way,
            seconds,
        } => runtime.block_on(async {
            let client = Client::connect(arguments, (address, server), under_way).await?;
            client
                .warm_up_and_obey(parent, Duration::from_secs_f64(seconds))
                .await
        }),
    }
}

/// So many files and sockets may be open.
fn allow_descriptors(count: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    let wanted = Rlimit {
        current: Some(count),
        maximum: limit.maximum.map(|maximum| maximum.max(count)),
    };
    setrlimit(Resource::Nofile, wanted)
        .with_context(|| format!("{count} descriptors are more than this user may have"))
}

/// Answers until the benchmark is over, and says what that took whenever it is asked.
async fn serve(parent: Parent, arguments: &RpcArgs, address: IpAddr) -> Result<()> {
    let (_server, at) = match arguments.over {
        Over::Trunkline => {
            let (server, at) = ours::serve(address, arguments.connections)?;
            (Some(server), at)
        }
        Over::Tcp => (None, tcp::serve(address)?),
        Over::Raw => (None, tcp::reflect(address)?),
        Over::Grpc | Over::Stream => (None, grpc::serve(address)?),
        Over::GrpcTcp | Over::StreamTcp => (None, grpc::serve_tcp(address)?),
    };
    spawn_blocking(move || {
        parent.say(&at)?;
        loop {
            parent.hear_line()?;
            parent.say(&cpu_ns()?)?;
        }
    })
    .await?
}

/// The connections of a client.
#[derive(Clone)]
enum Clients {
    Trunkline(Arc<[trunkline_rpc::Client]>),
    Tcp(Arc<[tcp::Client]>),
    Raw(Arc<Raw>),
    Grpc(Arc<[grpc::Client]>),
    Stream(grpc::Client),
}

/// A client.
#[derive(Clone)]
struct Client {
    clients: Clients,
    under_way: usize,
}

impl Client {
    async fn connect(
        arguments: &RpcArgs,
        (from, to): (IpAddr, SocketAddr),
        under_way: usize,
    ) -> Result<Self> {
        let count = arguments.connections;
        ensure!(count > 0 && under_way > 0, "nothing to do");
        let clients = match arguments.over {
            Over::Trunkline => Clients::Trunkline(ours::connect(from, to, count).await?.into()),
            Over::Tcp => Clients::Tcp(tcp::connect(to, count).await?.into()),
            Over::Raw => Clients::Raw(Raw::connect(to, count, under_way).await?.into()),
            Over::Grpc => Clients::Grpc([grpc::connect(from, to).await?].into()),
            Over::GrpcTcp => Clients::Grpc([grpc::connect_tcp(to).await?].into()),
            Over::Stream => Clients::Stream(grpc::connect(from, to).await?),
            Over::StreamTcp => Clients::Stream(grpc::connect_tcp(to).await?),
        };
        Ok(Self { clients, under_way })
    }

    async fn round(self, duration: Duration) -> Result<Found> {
        match self.clients {
            Clients::Trunkline(clients) => round(clients, self.under_way, duration).await,
            Clients::Tcp(clients) => round(clients, self.under_way, duration).await,
            Clients::Raw(raw) => raw.round(duration).await,
            Clients::Grpc(clients) => round(clients, self.under_way, duration).await,
            Clients::Stream(client) => grpc::stream(client, duration).await,
        }
    }

    /// Says that it is ready, and then what it found in a round whenever it is asked.
    async fn warm_up_and_obey(self, parent: Parent, duration: Duration) -> Result<()> {
        tokio::spawn(self.clone().round(WARM_UP)).await??;
        let runtime = Handle::current();
        spawn_blocking(move || {
            parent.say(&())?;
            loop {
                parent.hear_line()?;
                // In a task, so that the runtime's own thread starts all that is part of it.
                let found = runtime.spawn(self.clone().round(duration));
                parent.say(&runtime.block_on(found)??)?;
            }
        })
        .await?
    }
}
