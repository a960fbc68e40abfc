//! What the engine of a node is built on: memory of rings and of regions, of this process or of
//! programs that a service carries.

use std::sync::Arc;
use trunkline_conn::mem::{AtomicOp, Order, RegionMemory, Unreachable};
use trunkline_dataplane::process_memory::ProcessRegion;
use trunkline_dataplane::{PartedRegion, Region};
use trunkline_host::Words;
use trunkline_qpmap::Platform;
use trunkline_wire::Crc;

/// The platform of nodes.
#[derive(Debug)]
pub(crate) struct NodePlatform;

impl Platform for NodePlatform {
    type RegionMemory = Reach;
    type RingMemory = Words;
}

/// How a node reaches the memory of a region.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// It is mapped in this process.
    Mapped(Region),
    /// It is a program's own, which may not be there.
    Process(ProcessRegion),
    /// It is a program's own, and a part of it is mapped in both processes.
    Parted(Arc<PartedRegion>),
}

impl Reach {
    /// Bytes that are reached by system calls.
    pub(crate) fn foreign_bytes(&self) -> u64 {
        match self {
            Self::Mapped(_) => 0,
            Self::Process(region) => region.len() as u64,
            Self::Parted(region) => region.foreign_bytes(),
        }
    }

    /// Bytes of a program's own that are mapped in both processes.
    pub(crate) fn promoted_bytes(&self) -> u64 {
        match self {
            Self::Mapped(_) | Self::Process(_) => 0,
            Self::Parted(region) => region.shared_bytes(),
        }
    }
}

impl RegionMemory for Reach {
    fn addr(&self) -> u64 {
        match self {
            Self::Mapped(region) => region.addr(),
            Self::Process(region) => region.addr(),
            Self::Parted(region) => region.addr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Mapped(region) => region.len(),
            Self::Process(region) => region.len(),
            Self::Parted(region) => region.len(),
        }
    }

    #[inline]
    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        match self {
            Self::Mapped(region) => {
                region.copy_out(offset, out, crc);
                Ok(())
            }
            Self::Process(region) => region.copy_out(offset, out, crc),
            Self::Parted(region) => region.copy_out(offset, out, crc),
        }
    }

    /// Mapped memory has the last byte last in any case.
    #[inline]
    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        order: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        match self {
            Self::Mapped(region) => {
                region.copy_in(offset, data, crc);
                Ok(())
            }
            Self::Process(region) => region.copy_in(offset, data, order, crc),
            Self::Parted(region) => region.copy_in(offset, data, order, crc),
        }
    }

    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Unreachable> {
        match self {
            Self::Mapped(region) => Ok(region.atomic(offset, op)),
            Self::Process(region) => region.atomic(offset, op),
            Self::Parted(region) => region.atomic(offset, op),
        }
    }

    #[inline]
    fn sum(bytes: &[u8], crc: &mut Crc) {
        Region::sum(bytes, crc);
    }
}
