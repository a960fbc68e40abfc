//! A bulk flow of ours: two ends of a shared connection, the real code, with as much to send as the
//! connection takes.

use super::scenario::UDP_IP;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::delivery::{AckInfo, Arrival, Config, Delivery, Policy, Pool, Received, Stamp};
use trunkline_conn::time::{Instant, MILLISECOND};
use trunkline_wire::Qpn;

/// Bytes of the BTH to ICRC of a bare acknowledgement.
const ACK_BYTES: u32 = 64;
/// The clocks of the two ends differ by this.
const CLOCK_OFFSET: u64 = 1_234_567 * MILLISECOND;

/// What an end says.
#[derive(Clone, Debug)]
pub(super) enum Frame {
    Data(Stamp),
    Ack {
        cumulative: u32,
        sack: Vec<u64>,
        ce: u32,
        delay_ns: u32,
        echo: u32,
    },
}

#[derive(Debug)]
struct End {
    connection: Delivery<()>,
    pool: Pool<()>,
    /// Its clock at the start of the run.
    clock: u64,
}

impl End {
    fn new(config: &Config, clock: u64) -> Self {
        let start = Instant::from_nanos(clock);
        Self {
            connection: Delivery::new(config, start),
            pool: Pool::new(Policy::default()),
            clock,
        }
    }

    fn now(&self, at: u64) -> Instant {
        Instant::from_nanos(self.clock + at)
    }

    fn acknowledge(&mut self, now: Instant, ack: &AckInfo<'_>) {
        let told = self.connection.handle_ack(now, ack, &mut |()| {});
        told.expect("an honest peer acknowledges what was sent");
    }
}

/// Both ends; the first sends.
#[derive(Debug)]
pub(super) struct Flow {
    ends: [End; 2],
    datagram: u32,
}

impl Flow {
    pub(super) fn new(control: CongestionControl, mtu: u32, index: u32) -> Self {
        let datagram = mtu - UDP_IP;
        let config = |near: u32, far: u32| Config {
            local_id: Qpn::from_wire(near),
            remote_id: Qpn::from_wire(far),
            packet_size: datagram,
            control,
            ..Config::default()
        };
        let (near, far) = (2 * index + 1, 2 * index + 2);
        Self {
            ends: [
                End::new(&config(near, far), MILLISECOND),
                End::new(&config(far, near), CLOCK_OFFSET),
            ],
            datagram,
        }
    }

    /// A frame comes to an end. Gives whether it is a packet that had not come before.
    pub(super) fn arrive(&mut self, side: usize, at: u64, ce: bool, frame: &Frame) -> bool {
        let end = &mut self.ends[side];
        let now = end.now(at);
        match frame {
            Frame::Ack {
                cumulative,
                sack,
                ce,
                delay_ns,
                echo,
            } => {
                let ack = AckInfo {
                    cumulative: *cumulative,
                    sack,
                    echo: *echo,
                    ce: Some(*ce),
                    delay_ns: *delay_ns,
                    waited_ns: 0,
                };
                end.acknowledge(now, &ack);
                false
            }
            Frame::Data(stamp) => {
                let ack = AckInfo {
                    cumulative: stamp.ack,
                    sack: &[],
                    echo: stamp.echo,
                    ce: None,
                    delay_ns: 0,
                    waited_ns: 0,
                };
                end.acknowledge(now, &ack);
                let packet = Received {
                    timestamp: stamp.timestamp,
                    ce,
                    ack_req: stamp.ack_req,
                };
                match end.connection.arrival(stamp.number) {
                    Arrival::New => {
                        let pool = &mut end.pool;
                        end.connection.accept(now, stamp.number, &packet, pool);
                        true
                    }
                    Arrival::Duplicate => {
                        end.connection.duplicate(now, &packet, &mut end.pool);
                        false
                    }
                    Arrival::Beyond => panic!("an honest peer stays in the window"),
                }
            }
        }
    }

    /// One turn of an end, in the order that the connection documents. `send` gets frames and the
    /// bytes of their IP packets.
    pub(super) fn turn(
        &mut self,
        side: usize,
        at: u64,
        wants: bool,
        mut send: impl FnMut(u32, Frame),
    ) {
        let bytes = self.datagram + UDP_IP;
        let end = &mut self.ends[side];
        let now = end.now(at);
        end.connection.handle_timeout(now, &end.pool);
        while let Some(lost) = end.connection.peek_retransmit(now) {
            let stamp = end.connection.retransmit(now, lost.bytes);
            send(bytes, Frame::Data(stamp));
            end.connection.ack_piggybacked();
        }
        loop {
            let ready = if wants && side == 0 {
                end.connection.ready(now, &mut end.pool)
            } else {
                0
            };
            if ready == 0 {
                break;
            }
            for _ in 0..ready {
                let stamp = end.connection.record(now, (), self.datagram);
                send(bytes, Frame::Data(stamp));
                end.connection.ack_piggybacked();
            }
        }
        if let Some(ack) = end.connection.poll_ack(now) {
            let length = ACK_BYTES + 8 * ack.sack.len() as u32 + UDP_IP;
            let frame = Frame::Ack {
                cumulative: ack.cumulative,
                sack: ack.sack.to_vec(),
                ce: ack.ce,
                delay_ns: ack.delay_ns,
                echo: ack.echo,
            };
            send(length, frame);
        }
        while end.connection.poll_event().is_some() {}
        // What an owner does with a connection that has nothing to do.
        let _ = end.connection.try_idle(&mut end.pool);
    }

    /// When an end wants its next turn.
    pub(super) fn next(&self, side: usize) -> u64 {
        let end = &self.ends[side];
        let at = end.connection.poll_timeout(&end.pool);
        at.map_or(u64::MAX, |at| at.as_nanos().saturating_sub(end.clock))
    }
}
