//! The published model of the state of RC, XRC, DCT and SRC: bytes per connection or QP, times how
//! many of them a node has. A node does not count connections to itself.

/// A transport of the published model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheme {
    /// Reliable connection: one between any two processes.
    Rc,
    /// Extended RC: one between a process and a node.
    Xrc,
    /// Dynamically connected: one initiator or target per process.
    Dct,
    /// Shared reliable connections: one per peer node, and a light QP per process.
    Src,
}

/// Bytes of a reliable connection's context: RC, XRC and DCT.
const RC_CONTEXT: u64 = 750;
/// Bytes of a light QP of SRC.
const SRC_QP: u64 = 400;
/// Bytes of a shared connection of SRC.
const SRC_CONNECTION: u64 = 375;

impl Scheme {
    /// All of them, in the order of their state.
    pub const ALL: [Self; 4] = [Self::Rc, Self::Xrc, Self::Dct, Self::Src];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Xrc => "xrc",
            Self::Dct => "dct",
            Self::Src => "src",
        }
    }

    /// Bytes of state at each of `nodes` nodes (at least 1) with `processes` processes.
    pub const fn bytes(self, nodes: u64, processes: u64) -> u64 {
        let peers = nodes - 1;
        match self {
            Self::Rc => processes * processes * peers * RC_CONTEXT,
            Self::Xrc => processes * peers * RC_CONTEXT,
            Self::Dct => processes * RC_CONTEXT,
            Self::Src => processes * SRC_QP + peers * SRC_CONNECTION,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MB as the published table has them.
    const MB: f64 = (1 << 20) as f64;

    #[test]
    fn the_model_gives_the_published_figures_at_their_precision() {
        let published = [
            (32, ["8.869", "0.443", "0.014", "0.019"]),
            (128, ["36.335", "1.817", "0.014", "0.053"]),
            (512, ["146.198", "7.310", "0.014", "0.190"]),
        ];
        for (nodes, figures) in published {
            let ours = Scheme::ALL.map(|scheme| {
                let bytes = scheme.bytes(nodes, 20);
                format!("{:.3}", bytes as f64 / MB)
            });
            assert_eq!(ours, figures, "{nodes} nodes");
        }
    }
}
