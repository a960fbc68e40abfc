//! An end of many QPs with short messages, whoever takes it in: here one of two processes, and one
//! of two threads in `dpdk/port/benches/ring.rs`.

use trunkline::{
    Access, Builder, Completion, Cq, Drive, Error, Mr, Node, Pd, Qp, QpAddress, QpOptions, RecvWr,
    SendWr, Status,
};

/// Bytes of a message.
pub(crate) const SIZE: usize = 64;
/// QPs at each end.
pub(crate) const QPS: usize = 64;
/// Messages under way on each.
pub(crate) const DEPTH: usize = 16;
/// Receives that wait on each.
pub(crate) const RECEIVES: usize = 2 * DEPTH;
/// Completions taken at once.
const BATCH: usize = 64;

/// A node, its QPs, and how much is to be posted on each.
pub(crate) struct End {
    pub(crate) node: Node,
    cq: Cq,
    qps: Vec<Qp>,
    mr: Mr,
    /// QPs with something to post.
    due: Vec<usize>,
    /// How much, for each QP.
    count: [usize; QPS],
    _pd: Pd,
}

impl End {
    /// With a node of `builder`, which the program drives.
    pub(crate) fn open(builder: Builder) -> Result<Self, Error> {
        let node = builder.drive(Drive::Inline).build()?;
        let pd = node.alloc_pd();
        let cq = node.create_cq((QPS * (DEPTH + RECEIVES)) as u32)?;
        let options = QpOptions {
            max_send_wr: DEPTH as u32,
            max_recv_wr: RECEIVES as u32,
            ..QpOptions::default()
        };
        let qps = (0..QPS).map(|_| pd.create_qp(&cq, &cq, &options));
        Ok(Self {
            qps: qps.collect::<Result<_, _>>()?,
            mr: pd.register(QPS * SIZE, Access::ALL)?,
            node,
            cq,
            due: Vec::with_capacity(QPS),
            count: [0; QPS],
            _pd: pd,
        })
    }

    pub(crate) fn addresses(&self) -> Vec<QpAddress> {
        self.qps.iter().map(Qp::address).collect()
    }

    /// Connects each QP to its like at the other end.
    pub(crate) fn connect(&self, peers: Vec<QpAddress>) -> Result<(), Error> {
        let mut both = self.qps.iter().zip(peers);
        both.try_for_each(|(qp, peer)| qp.connect(peer))
    }

    /// Posts all receives.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        (0..QPS).try_for_each(|qp| self.receive(qp, RECEIVES))
    }

    pub(crate) fn receive(&self, qp: usize, count: usize) -> Result<(), Error> {
        let sges = [self.mr.sge(qp * SIZE, SIZE)];
        let request = RecvWr::new().wr_id(qp as u64).sges(&sges);
        self.qps[qp].post_recv(&[request; RECEIVES][..count])
    }

    pub(crate) fn send(&self, qp: usize, count: usize) -> Result<(), Error> {
        let sges = [self.mr.sge(qp * SIZE, SIZE)];
        let request = SendWr::send().wr_id(qp as u64).sges(&sges).signaled();
        self.qps[qp].post_send(&[request; DEPTH][..count])
    }

    /// One round of the node. Gives how many requests are done: that many are due again.
    ///
    /// # Panics
    /// A request failed: then there is nothing to measure.
    pub(crate) fn turn(&mut self) -> Result<u64, Error> {
        self.node.poll()?;
        let mut found = [Completion::BLANK; BATCH];
        let mut all = 0;
        loop {
            let taken = self.cq.poll(&mut found)?;
            for done in &found[..taken] {
                assert_eq!(done.status, Status::Success, "a request: {done:?}");
                self.add(done.wr_id as usize, 1);
            }
            all += taken as u64;
            if taken < BATCH {
                return Ok(all);
            }
        }
    }

    /// All that may be under way is to be sent.
    pub(crate) fn fill(&mut self) {
        (0..QPS).for_each(|qp| self.add(qp, DEPTH));
    }

    /// So much more is to be posted on a QP.
    fn add(&mut self, qp: usize, count: usize) {
        if self.count[qp] == 0 {
            self.due.push(qp);
        }
        self.count[qp] += count;
    }

    /// A QP with something to post, and how much.
    pub(crate) fn next_due(&mut self) -> Option<(usize, usize)> {
        let qp = self.due.pop()?;
        Some((qp, std::mem::take(&mut self.count[qp])))
    }
}
