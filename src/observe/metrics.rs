//! Everything that a node counts, for Prometheus.

use crate::node::Node;
use crate::observe::cm_counters::CmCounters;
use crate::observe::status::{CmStats, Times};
use crate::worker::messages::HandOvers;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use trunkline_conn::delivery::Counters as DeliveryCounters;
use trunkline_dataplane::PortCounters;
use trunkline_qpmap::Counters;

/// One label, with its values.
type Labels = [(&'static str, String); 1];

impl Node {
    /// Returns everything that it counts, for Prometheus to scrape: text of the format
    /// OpenMetrics 1.0 (`application/openmetrics-text; version=1.0.0; charset=utf-8`). Needs the
    /// feature `metrics`.
    ///
    /// The names are `trunkline_engine_sent_total` for `sent` of [`Node::counters`], and likewise
    /// with `delivery` for [`Node::delivery_counters`], `port` for [`Node::port_counters`], `cm`
    /// for [`Node::cm_stats`], `cm_nodes`, `cm_hosts` and `cm_rdma` for
    /// [`Node::cm_counters`], and `hand_overs` for [`Node::hand_overs`]. What is there now, and not
    /// counted since the start, has no `_total`.
    ///
    /// It takes the lock of each worker for a moment.
    pub fn metrics(&self) -> String {
        let mut registry = Registry::with_prefix("trunkline");
        engine(&mut registry, self.counters());
        delivery(&mut registry, self.delivery_counters());
        port(&mut registry, self.port_counters());
        hand_overs(&mut registry, self.hand_overs());
        management(&mut registry, self.cm_stats());
        refused(&mut registry, &self.cm_counters());
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes any text");
        text
    }
}

/// Registers every field of a struct of counters, with what it says, and sums over all that there
/// are. A list without one of the fields does not compile.
macro_rules! counters {
    ($registry:expr, $prefix:literal, $all:expr => $($part:ident)::+ {
        $($name:ident: $help:literal,)*
    }) => {
        let mut sum = $($part)::+::default();
        for $($part)::+ { $($name),* } in $all {
            $(sum.$name += $name;)*
        }
        $($registry.register(
            concat!($prefix, "_", stringify!($name)),
            $help,
            ConstCounter::new(sum.$name),
        );)*
    };
}

fn engine(registry: &mut Registry, counters: Counters) {
    counters!(registry, "engine", [counters] => Counters {
        received: "Datagrams handed in",
        streamed: "Datagrams handed in that went the way of the one before",
        sent: "Datagrams built",
        packed_sent: "Datagrams built that several messages or answers shared",
        packed_received: "Datagrams handed in that several messages or answers shared",
        malformed: "Dropped: shorter than its headers say",
        unknown_opcode: "Dropped: an opcode nobody defined",
        bad_icrc: "Dropped: the ICRC is wrong",
        identification_solved: "The ICRC was right with another IP identification than predicted",
        unknown_connection: "Dropped: no such connection",
        bad_token: "Dropped: the connection's token is another",
        bad_source: "Dropped: came from another address than the connection's peer",
        outside_window: "Dropped: a packet number outside the window",
        bad_acknowledgement: "Dropped: acknowledges what was never sent",
        duplicate: "Seen before",
        staging_full: "Dropped, to be sent again: no room to let it wait for an earlier one of its \
            QP",
        staged: "Waited for an earlier packet of its QP",
        stale: "Acknowledged and ignored: an earlier incarnation of the QP, or an earlier replay \
            epoch",
        unknown_qp: "For a QP that does not exist or is bound elsewhere",
        rnr_sent: "Answered receiver not ready",
        rnr_received: "Told that the receiver is not ready",
        nak_sent: "Refused a peer's request for good",
        nak_received: "Had a request refused for good",
        bad_answer: "Answers, BINDs or responses that make no sense for their flow",
        bad_doorbell: "Doorbells of programs in other processes that stand for no QP",
        void_sent: "Packets that stand for data that is gone",
        void_received: "Messages aborted because their data was gone at the sender",
        ibta_dropped: "Dropped by an IBTA connection, UC or UD",
        ibta_unknown_qp: "Dropped: no QP of that number speaks IBTA RC, UC or UD",
        executed: "Messages executed for peers",
        completed: "Requests completed",
        bound: "Times that a peer agreed to a BIND: the QP may send",
        timed_out: "Flows that ended because their peer was silent, or its QP not ready, for their \
            QP's time",
        routes_ended: "Routes of app-managed QPs that ended: closed by their programs, ended by \
            their peers, failed",
        routes_refused: "Routes that peers wanted beyond their share",
        failovers: "Flows that moved because their connection died",
        narrowed: "Times that a path was found to carry no large packets any more",
        widened: "Times that such a path was found to carry larger ones again",
        source_port_changed: "Times that a connection went on to another UDP source port, as its \
            packets came out at the wrong worker of the peer",
        resegmented: "Flows that sent anew what packets had carried that became too large for \
            their path",
        control_overflow: "Control messages that asked for too much at once",
    });
}

fn delivery(registry: &mut Registry, counters: DeliveryCounters) {
    counters!(registry, "delivery", [counters] => DeliveryCounters {
        sent: "Packets sent for the first time",
        retransmitted: "Transmissions beyond the first",
        lost: "Packets sent that were found lost",
        spurious: "Packets thought lost that had arrived",
        acked: "Packets acknowledged",
        acked_bytes: "Bytes acknowledged",
        probes: "Probes sent because no acknowledgement came",
        marked: "Packets reported as CE-marked by the peer",
        accepted: "Packets accepted",
        duplicates: "Packets that came again",
        ce: "CE-marked packets received",
        acks: "Pure acknowledgements made",
    });
}

fn port(registry: &mut Registry, counters: PortCounters) {
    counters!(registry, "port", [counters] => PortCounters {
        sent: "Datagrams handed to the medium",
        sent_bytes: "Bytes of datagrams handed to the medium, BTH to ICRC",
        super_packets_sent: "Super-packets among what was handed over: units of two datagrams or \
            more",
        send_calls: "Calls that handed something over",
        received: "Datagrams given to the sink",
        received_bytes: "Bytes of datagrams given to the sink, BTH to ICRC",
        super_packets_received: "Super-packets among what was received",
        receive_calls: "Calls that received something",
        full: "Flushes that left something because the medium was full",
        too_long: "Datagrams dropped when sending: longer than the path carries (EMSGSIZE)",
        no_buffers: "Datagrams dropped when sending: the machine was out of buffers (ENOBUFS, \
            ENOMEM)",
        unreachable: "Datagrams dropped when sending: no such peer or no way to it (ECONNREFUSED, \
            ENETUNREACH, EHOSTUNREACH), or the peer's end of a memory pair is gone",
        misrouted: "Datagrams dropped when sending: their path does not start at this port \
            (another family, another source address, an unknown source port)",
        refused: "Datagrams dropped when sending: refused for another reason",
        split: "Super-packets the machine refused, sent as single datagrams instead",
        malformed: "Datagrams dropped when receiving: truncated, or with unusable ancillary data",
        foreign: "Frames dropped when receiving: for others, or of protocols that nobody here \
            speaks",
        missed: "Frames lost before they were received: there was no room for them",
    });
}

fn hand_overs(registry: &mut Registry, counters: HandOvers) {
    counters!(registry, "hand_overs", [counters] => HandOvers {
        packets: "Packets of connections and QPs handed to another worker",
        management: "Management datagrams handed to another worker",
        lost: "Packets and management datagrams lost because too much waited for the other worker",
    });
}

fn management(registry: &mut Registry, stats: CmStats) {
    let CmStats {
        handshakes,
        connections,
        ids,
        established,
        qps,
        rebound,
        binding,
        opened,
        down,
        failovers,
        sent,
        received,
        in_line,
        queued,
        overload,
        steps,
    } = stats;
    for (name, help, counts) in [
        (
            "cm_handshakes",
            "Handshakes between nodes that there are",
            handshakes,
        ),
        (
            "cm_connections",
            "Connections and questions of ordinary hosts that there are",
            connections,
        ),
        ("cm_ids", "IDs of RDMA-CM that there are", ids),
    ] {
        registry.register(
            name,
            help,
            by_label("phase", counts, &|gauge: &Gauge, count| {
                gauge.set(count.cast_signed());
            }),
        );
    }
    for (name, help, count) in [
        (
            "cm_binding",
            "QPs that wait for their peer's consent now",
            binding,
        ),
        (
            "cm_in_line",
            "Peers that wait now until they are asked",
            in_line,
        ),
    ] {
        registry.register(name, help, ConstGauge::new(count));
    }
    for (name, help, count) in [
        (
            "cm_established",
            "Connections that came to stand: between nodes, and of ordinary hosts",
            established,
        ),
        (
            "cm_qps",
            "QPs on shared connections to which their peer has consented",
            qps,
        ),
        (
            "cm_rebound",
            "QPs to which their peer has consented once more, after their connection had died",
            rebound,
        ),
        ("cm_opened", "Shared connections opened", opened),
        ("cm_down", "Shared connections gone", down),
        (
            "cm_failovers",
            "QPs whose connection died and that went on with another",
            failovers,
        ),
        ("cm_sent", "Management datagrams sent", sent),
        (
            "cm_received",
            "Management datagrams received that were whole",
            received,
        ),
        (
            "cm_queued",
            "Peers that had to wait until they were asked",
            queued,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(count));
    }
    registry.register(
        "cm_overload",
        "How often there was no room, or no decision in time",
        by_label("what", overload, &add),
    );
    of_steps(registry, steps);
}

fn add(counter: &Counter, count: u64) {
    counter.inc_by(count);
}

fn of_steps(registry: &mut Registry, steps: BTreeMap<String, Times>) {
    let taken = steps.iter();
    let taken = taken.map(|(step, times)| (step.clone(), times.count));
    let help = "Times that a step was taken";
    registry.register("cm_steps", help, by_label("step", taken.collect(), &add));
    let took = steps.into_iter().map(|(step, times)| (step, times.sum_ns));
    let add = |counter: &Counter<f64, AtomicU64>, ns| {
        counter.inc_by(ns as f64 / 1e9);
    };
    let took = by_label("step", took.collect(), &add);
    let help = "How long a step took, all times together";
    registry.register_with_unit("cm_steps_time", help, Unit::Seconds, took);
}

/// Metrics of one family: one for each value of a label.
fn by_label<M: Default + Clone>(
    label: &'static str,
    counts: BTreeMap<String, u64>,
    set: &impl Fn(&M, u64),
) -> Family<Labels, M> {
    let family = Family::<Labels, M>::default();
    for (value, count) in counts {
        set(&family.get_or_create_owned(&[(label, value)]), count);
    }
    family
}

/// What connection management of each worker dropped or refused.
fn refused(registry: &mut Registry, counters: &[CmCounters]) {
    let (mut bad, mut lost) = (0, 0);
    for CmCounters {
        unreadable,
        unresolved,
        nodes: _,
        hosts: _,
        rdma: _,
    } in counters
    {
        bad += unreadable;
        lost += unresolved;
    }
    registry.register(
        "cm_unreadable",
        "Datagrams to QP 1 that are no whole management datagram: cut short, damaged, of \
         another partition",
        ConstCounter::new(bad),
    );
    registry.register(
        "cm_unresolved",
        "Addresses and routes that RDMA-CM was asked for and could not resolve",
        ConstCounter::new(lost),
    );
    of_nodes(registry, counters);
    of_hosts(registry, counters);
    of_ids(registry, counters);
}

fn of_nodes(registry: &mut Registry, counters: &[CmCounters]) {
    let all = counters.iter().map(|all| all.nodes);
    counters!(registry, "cm_nodes", all => trunkline_cm::Counters {
        received: "Datagrams in all",
        malformed: "Not a message of communication management",
        unsupported: "A message that nobody here handles (LAP, APR, SIDR)",
        foreign_service: "A REQ for another service; refused",
        bad_hello: "A hello that makes no sense or is of another version; refused",
        address_mismatch: "The GIDs inside a REQ are not the addresses outside",
        unknown: "It names a handshake that is not there, or of another peer",
        mismatch: "It does not fit the state, the IDs or the transaction of its handshake",
        duplicate: "It has come before",
        crossed: "A request that crossed one of ours and lost to it",
        busy: "A request for which there was no room; refused for now",
        unfair: "A request of an address that has as much under way as it may; refused for now",
        over_share: "A request of an address that has its share of the connections; refused",
        unproved: "Messages that were not sent again, as nothing proves that the address had asked",
        identity: "A request of this node itself; refused",
        duplicate_guid: "Peers that proved to have the GUID of this node, or of a peer at another \
            address. Each is what its own address proves; somebody has set one GUID \
            twice, or claims another's",
        silent: "Peers that were given up as they did not answer one of our messages, through all \
            tries",
        nobody: "Requests that ended because the peer's host said that nobody listens there",
        misquoted: "Errors of hosts that nobody listens which fit no request of ours, or not its \
            peer",
        transmit_full: "Datagrams to send that were dropped because too many waited",
    });
}

fn of_hosts(registry: &mut Registry, counters: &[CmCounters]) {
    let all = counters.iter().map(|all| all.hosts);
    counters!(registry, "cm_hosts", all => trunkline_cm::ib::Counters {
        received: "Datagrams in all",
        malformed: "Not a message of communication management",
        no_service: "A request for a service that nobody offers; refused",
        invalid: "A request that holds what it may not; refused",
        address_mismatch: "The GIDs inside a REQ are not the addresses outside; refused",
        unknown: "It names a connection that is not there, or of another peer; answered where that \
            helps",
        mismatch: "It does not fit the state, the numbers or the transaction of its connection",
        duplicate: "It has come before; answered as the first was",
        busy: "A request for which there was no room; asked for patience",
        unfair: "A request of an address that has as much under way as it may; refused",
        over_share: "A request of an address that has its share of the connections; refused",
        unproved: "Messages that were not sent again, as nothing proves that the address had asked",
        late: "A request or answer that nobody had decided on in time; asked for patience",
        stale: "A request or answer of a QP that is still connected; refused, and the old \
            connection ended",
        alternate: "Proposals for alternate paths; refused",
        silent: "Peers that were given up as they did not answer one of our messages, through all \
            tries",
        nobody: "Requests that ended because the peer's host said that nobody listens there",
        misquoted: "Errors of hosts that nobody listens which fit no request of ours, or not its \
            peer",
        transmit_full: "Datagrams to send that were dropped because too many waited",
    });
}

fn of_ids(registry: &mut Registry, counters: &[CmCounters]) {
    let all = counters.iter().map(|all| all.rdma);
    counters!(registry, "cm_rdma", all => trunkline_cm::rdma::Counters {
        bad_header: "Private data does not begin with a header of RDMA-CM",
        address_mismatch: "The addresses in the header are not those that the packet took",
        no_listener: "Nobody listens on that address, though somebody does on the port",
        wrong_kind: "The listener wants another kind of QP",
        backlog: "The listener has as many requests waiting as it may",
        unfair: "The address has as many requests waiting at the listener as it may",
        ids: "There are as many IDs as may be",
        too_long: "Calls of our own program with more private data than the message has room for",
    });
}

#[cfg(test)]
mod tests;
