//! The two processes, each one thread that runs a tokio runtime.

use super::load::{Caller, Found, cpu_ns, round};
use super::tcp::{self, Raw};
use super::{grpc, open, ours};
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
        /// Calls under way, each made as soon as the last one of its caller is answered.
        #[arg(long, conflicts_with = "rate", required_unless_present = "rate")]
        under_way: Option<usize>,
        /// Calls per second, made whether or not those before them are answered.
        #[arg(long)]
        rate: Option<f64>,
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
            rate,
            seconds,
        } => runtime.block_on(async {
            let load = rate.map_or(Load::UnderWay(under_way.unwrap_or(1)), Load::Rate);
            let client = Client::connect(arguments, (address, server), load).await?;
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

/// When calls are made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// So many are under way.
    UnderWay(usize),
    /// So many begin per second.
    Rate(f64),
}

impl Load {
    async fn round<C: Caller>(self, clients: Arc<[C]>, duration: Duration) -> Result<Found> {
        match self {
            Self::UnderWay(calls) => round(clients, calls, duration).await,
            Self::Rate(rate) => open::round(clients, rate, duration).await,
        }
    }
}

/// A client.
#[derive(Clone)]
struct Client {
    clients: Clients,
    load: Load,
}

impl Client {
    async fn connect(
        arguments: &RpcArgs,
        (from, to): (IpAddr, SocketAddr),
        load: Load,
    ) -> Result<Self> {
        let count = arguments.connections;
        let under_way = match load {
            Load::UnderWay(calls) => calls,
            Load::Rate(_) => 1,
        };
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
        Ok(Self { clients, load })
    }

    async fn round(self, duration: Duration) -> Result<Found> {
        match self.clients {
            Clients::Trunkline(clients) => self.load.round(clients, duration).await,
            Clients::Tcp(clients) => self.load.round(clients, duration).await,
            Clients::Raw(raw) => raw.round(duration).await,
            Clients::Grpc(clients) => self.load.round(clients, duration).await,
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
