//! The program above an InfiniBand transport: its memory, and what it has posted.

use crate::input::Input;
use crate::memory::Region;
use crate::requests;
use std::collections::VecDeque;
use trunkline_conn::host::{Host, QpEvent, ReceivesInError};
use trunkline_conn::mem::{Access, PdId, Sge};
use trunkline_conn::secret::Secret;
use trunkline_conn::work::{Completion, Local, Receive, Request, SendFlags, SendOp, Status};
use trunkline_qpmap::regions::{RegionTable, Regions};
use trunkline_wire::{Lkey, Qpn, Rkey};

/// Bytes of each region.
pub(crate) const REGION: usize = 1024;
/// Where the region begins that peers may reach.
pub(crate) const OPEN_ADDR: u64 = 0x1_0000;
const LOCAL_ADDR: u64 = 0x2_0000;
/// Bytes of the local region that requests name; the rest stays as it is.
const USED: usize = 512;

pub(crate) struct Program {
    pub(crate) qpn: Qpn,
    regions: Regions<Region>,
    pds: [PdId; 2],
    /// Keys: reachable, local, without rights, of another domain.
    keys: [Rkey; 4],
    local: Region,
    secrets: [Region; 2],
    /// Requests posted that have not ended.
    pub(crate) posted: VecDeque<u64>,
    receives: VecDeque<Receive>,
    /// Receives taken that have not ended.
    taken: VecDeque<u64>,
    next: u64,
}

impl Program {
    pub(crate) fn new() -> Self {
        let table = RegionTable::new(&Secret::from_seed(1));
        let pds = [table.alloc_pd(), table.alloc_pd()];
        let made = [
            (
                pds[0],
                Region::new(OPEN_ADDR, REGION),
                Access::ALL | Access::REMOTE_INVALIDATE,
            ),
            (
                pds[0],
                Region::new(LOCAL_ADDR, REGION).marked(),
                Access::LOCAL_WRITE,
            ),
            (
                pds[0],
                Region::new(0x3_0000, REGION).marked(),
                Access::LOCAL_READ,
            ),
            (pds[1], Region::new(0x4_0000, REGION).marked(), Access::ALL),
        ];
        made[1].1.clear(USED);
        let keys = made.each_ref().map(|(pd, region, access)| {
            let registered = table.register(*pd, region.clone(), *access);
            registered.expect("a region like others").rkey
        });
        let [_, (_, local, _), (_, first, _), (_, second, _)] = made;
        Self {
            qpn: Qpn::default(),
            regions: table.view(),
            pds,
            keys,
            local,
            secrets: [first, second],
            posted: VecDeque::new(),
            receives: VecDeque::new(),
            taken: VecDeque::new(),
            next: 0,
        }
    }

    pub(crate) fn pd(&self) -> PdId {
        self.pds[0]
    }

    /// A key that a peer may have, or not.
    pub(crate) fn rkey(&self, choice: u8, input: &mut Input<'_>) -> Rkey {
        match choice {
            0..=4 => self.keys[0],
            5 => self.keys[usize::from(input.byte()) % self.keys.len()],
            6 => Rkey(self.keys[0].0 ^ u32::from(input.byte())),
            _ => Rkey(input.u32()),
        }
    }

    fn sges(&self, input: &mut Input<'_>) -> Vec<Sge> {
        requests::sges(LOCAL_ADDR, USED, self.keys[1], input)
    }

    /// The next request to post.
    pub(crate) fn request(&mut self, input: &mut Input<'_>) -> Request {
        let op = requests::operation(input);
        let flags = SendFlags(u32::from(input.byte()) & 7);
        let mut sges = self.sges(input);
        if matches!(op, SendOp::Atomic(..)) {
            sges = vec![Sge {
                addr: LOCAL_ADDR,
                length: 8,
                lkey: Lkey(self.keys[1].0),
            }];
        }
        if input.byte() > 240 {
            // Gone, or never there: a local fault.
            sges.iter_mut().for_each(|sge| sge.lkey.0 ^= 1);
        }
        self.next += 1;
        Request {
            wr_id: self.next,
            op,
            flags,
            length: sges.iter().map(|sge| sge.length).sum(),
            local: Local::Sges(sges.into_iter().collect()),
        }
    }

    /// Posts a receive.
    pub(crate) fn receive(&mut self, input: &mut Input<'_>) {
        self.next += 1;
        let sges = self.sges(input).into_iter().collect();
        self.receives.push_back(Receive {
            wr_id: self.next,
            sges,
        });
    }

    /// Memory is as it must be.
    pub(crate) fn check(&self) {
        for secret in &self.secrets {
            assert!(
                secret.is_marked_from(0),
                "memory without rights was written"
            );
        }
        assert!(
            self.local.is_marked_from(USED),
            "memory no request names was written"
        );
    }

    /// The connection is down: nothing may be outstanding.
    pub(crate) fn finish(self) {
        assert!(
            self.posted.is_empty(),
            "{} requests never ended",
            self.posted.len()
        );
        assert!(
            self.taken.is_empty(),
            "{} receives never ended",
            self.taken.len()
        );
    }
}

impl Host for Program {
    type Memory = Regions<Region>;

    fn memory(&mut self) -> &mut Self::Memory {
        &mut self.regions
    }

    fn take_receive(&mut self) -> Result<Option<Receive>, ReceivesInError> {
        let next = self.receives.pop_front();
        self.taken
            .extend(next.as_ref().map(|receive| receive.wr_id));
        Ok(next)
    }

    fn sent(&mut self, request: Request, _: Status, _: u32) {
        let expected = self.posted.pop_front();
        assert_eq!(
            expected,
            Some(request.wr_id),
            "a request ended out of order"
        );
    }

    fn received(&mut self, completion: Completion) {
        let expected = self.taken.pop_front();
        assert_eq!(
            expected,
            Some(completion.wr_id),
            "a receive ended out of order"
        );
        assert_eq!(completion.qpn, self.qpn);
    }

    fn event(&mut self, _: QpEvent) {}
}
