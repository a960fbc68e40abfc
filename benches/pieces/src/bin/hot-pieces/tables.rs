//! What is looked up for every packet.

use std::hint::black_box;
use trunkline_conn::mem::{Access, Memory};
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_dataplane::Region;
use trunkline_qpmap::key::Secret24;
use trunkline_qpmap::mapping::Mapping;
use trunkline_qpmap::regions::RegionTable;
use trunkline_wire::Worker;

/// QPs in the table: more than fit the inner caches.
const QPS: u32 = 1 << 16;

pub(crate) fn mapping_lookup(repetitions: u32) {
    let mapping = Mapping::new();
    for index in 0..QPS {
        mapping.set(index, index & 7, 1);
    }
    for number in 0..repetitions {
        // Neighbours in time are not neighbours in the table.
        let index = number.wrapping_mul(0x9e37_79b1) % QPS;
        black_box(mapping.get(black_box(index)));
    }
}

pub(crate) fn qpn_to_index(repetitions: u32) {
    let secret = Secret24::new(Secret::from_seed(1).stream(Purpose::Qpns), Worker::ONLY);
    for number in 0..repetitions {
        black_box(secret.open(black_box(number & 0xff_ffff)));
    }
}

pub(crate) fn region_check(repetitions: u32) {
    let table = RegionTable::new(&Secret::from_seed(3));
    let (pd, regions) = (table.alloc_pd(), table.view());
    let qpn = trunkline_wire::Qpn::default();
    let by = trunkline_conn::mem::Responder { pd, qpn };
    let memory = Region::allocate(1 << 16).expect("a few pages");
    let addr = trunkline_conn::mem::RegionMemory::addr(&memory);
    let key = table
        .register(pd, memory, Access::ALL)
        .expect("a first region")
        .rkey;
    for number in 0..repetitions {
        let at = addr + u64::from(number & 0xff);
        let verdict = regions.check_remote(by, black_box(key), at, 4096, Access::REMOTE_WRITE);
        let _ = black_box(verdict);
    }
}
