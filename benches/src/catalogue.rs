//! All benchmarks, in the order in which they are reported.

use crate::{
    Measurement, Setting, cold, connect, engine, goodput, isolation, probes, resident, rpc, scale,
    send64, served, storm, udp, warm, workers,
};
use anyhow::Result;
use std::fmt;

/// One benchmark.
#[derive(Clone, Copy)]
pub struct Bench {
    /// Its name.
    pub name: &'static str,
    /// What it measures, in a line.
    pub what: &'static str,
    /// Measures.
    ///
    /// # Errors
    /// Why it cannot run here.
    pub run: fn(&Setting) -> Result<Measurement>,
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// All of them.
pub const ALL: &[Bench] = &[
    Bench {
        name: "engine_send64",
        what: "rate of 64 B SENDs, 1,000 QPs on one connection, one thread",
        run: |setting| Ok(engine::send64(setting)),
    },
    Bench {
        name: "engine_write1m_l2",
        what: "bandwidth of large WRITEs within the second cache",
        run: |setting| Ok(engine::write1m_l2(setting)),
    },
    Bench {
        name: "engine_write1m_64m",
        what: "bandwidth of 1 MiB WRITEs over 64 MiB",
        run: |setting| Ok(engine::write1m_64m(setting)),
    },
    Bench {
        name: "udp_write1m",
        what: "bandwidth of 1 MiB WRITEs between two namespaces, against TCP",
        run: udp::write1m,
    },
    Bench {
        name: "udp_lat64",
        what: "latency of 64 B SENDs between two namespaces, against TCP",
        run: udp::lat64,
    },
    Bench {
        name: "udp_send64",
        what: "rate of 64 B SENDs between two processes, against UCX over TCP",
        run: send64::send64,
    },
    Bench {
        name: "rpc_echo_1",
        what: "calls of 64 B between two processes, one at a time, against TCP",
        run: rpc::echo_1,
    },
    Bench {
        name: "rpc_echo_100",
        what: "the same with 100 under way over 100 QPs",
        run: rpc::echo_100,
    },
    Bench {
        name: "rpc_echo_10000",
        what: "the same with 10,000 under way over 100 QPs",
        run: rpc::echo_10000,
    },
    Bench {
        name: "rpc_open_p99",
        what: "latency of calls of 64 B that begin by the clock, against TCP",
        run: rpc::open_p99,
    },
    Bench {
        name: "rpc_fan_10000",
        what: "calls of 10,000 clients with a QP each, against TCP",
        run: rpc::fan_10000,
    },
    Bench {
        name: "grpc_echo",
        what: "calls of 64 B by tonic between two processes, 100 under way, against TCP",
        run: rpc::grpc_echo,
    },
    Bench {
        name: "grpc_stream64k",
        what: "messages of 64 KiB of one stream of tonic between two processes, against TCP",
        run: rpc::grpc_stream64k,
    },
    Bench {
        name: "shaped_alone",
        what: "bandwidth of 1 MiB WRITEs through 100 Mb/s with 2 ms, against TCP",
        run: udp::alone,
    },
    Bench {
        name: "shaped_beside",
        what: "the same at the same time as a TCP stream",
        run: udp::beside,
    },
    Bench {
        name: "cm_plain_rate",
        what: "rate of QPs connected by REQ, REP and RTU each, against TCP",
        run: connect::plain_rate,
    },
    Bench {
        name: "qp_scale_idle",
        what: "rate of 16 QPs among 100,000, against 16 alone",
        run: |setting| Ok(scale::idle(setting)),
    },
    Bench {
        name: "qp_scale_active",
        what: "rate of 100,000 QPs in turn, against 16 alone",
        run: |setting| Ok(scale::active(setting)),
    },
    Bench {
        name: "idle_qp_bytes",
        what: "memory of a QP that is connected and does nothing",
        run: resident::idle_qp_bytes,
    },
    Bench {
        name: "loss1_goodput",
        what: "goodput of WRITEs with 1 % of packets lost, in virtual time",
        run: |_| Ok(goodput::loss1(goodput::LENGTH)),
    },
    Bench {
        name: "reorder5_goodput",
        what: "goodput of WRITEs with 5 % of packets reordered, in virtual time",
        run: |_| Ok(goodput::reorder5(goodput::LENGTH)),
    },
    Bench {
        name: "isolation_p99",
        what: "latency beside QPs in trouble on the same connection, in virtual time",
        run: |_| Ok(isolation::p99(isolation::LENGTH)),
    },
    Bench {
        name: "cm_warm_qps",
        what: "QPs connected per second between nodes that know each other, against TCP",
        run: warm::qps,
    },
    Bench {
        name: "cm_cold_trips",
        what: "one-way trips until the first byte is at a node never met, in virtual time",
        run: |_| cold::trips(),
    },
    Bench {
        name: "cm_probes",
        what: "the same with all that is counted, timed and probed, against none of it",
        run: probes::cost,
    },
    Bench {
        name: "workers_astray",
        what: "rate of 64 B WRITEs where every packet comes out at the wrong one of two workers, \
            against none",
        run: workers::astray,
    },
    Bench {
        name: "workers_scale",
        what: "rate of 64 B WRITEs and of set-up with two workers at each node, against one",
        run: workers::scale,
    },
    Bench {
        name: "cm_storm",
        what: "10,048 QPs from 64 nodes to one that they never met, over loopback",
        run: |_| storm::storm(),
    },
    Bench {
        name: "served_write64k",
        what: "CPU of two services for ib_write_bw of 64 KiB, against nodes inside programs",
        run: served::write64k,
    },
    Bench {
        name: "served_lat64",
        what: "latency of ib_send_lat of 64 B on one service, against nodes inside programs",
        run: served::lat64,
    },
    Bench {
        name: "served_memory",
        what: "CPU of two services for WRITEs between memory that a thread reaches, or they do",
        run: served::memory,
    },
    Bench {
        name: "served_idle",
        what: "CPU of a service with 100 clients of 100 idle QPs each",
        run: served::idle,
    },
    Bench {
        name: "served_fair",
        what: "share of a client with one QP beside one with 10,000",
        run: served::fair,
    },
    Bench {
        name: "served_kills",
        what: "latency of clients beside others that are killed in the middle of traffic",
        run: served::kills,
    },
];

/// The benchmark of that name.
pub fn find(name: &str) -> Option<&'static Bench> {
    ALL.iter().find(|bench| bench.name == name)
}
