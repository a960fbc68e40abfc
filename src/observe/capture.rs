//! Management datagrams, written down.

use crate::error::Error;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_conn::ingress::Arrival;
use trunkline_dataplane::PacketWriter;
use trunkline_wire::Path;

type Writer = PacketWriter<BufWriter<Box<dyn Write + Send>>>;

/// How a capture goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CaptureState {
    /// Datagrams written.
    pub recorded: u64,
    /// Datagrams no frame can be made for.
    pub skipped: u64,
    /// Why it ended, if it did.
    pub failure: Option<io::ErrorKind>,
}

/// Where they go. Clones write to the same file.
#[derive(Clone)]
pub(crate) struct Capture(Arc<Mutex<Writer>>);

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().fmt(f)
    }
}

impl Capture {
    pub(crate) fn new(writer: Box<dyn Write + Send>) -> Result<Self, Error> {
        let writer = PacketWriter::new(BufWriter::new(writer)).map_err(Error::system("capture"))?;
        Ok(Self(Arc::new(Mutex::new(writer))))
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sent(&self, path: &Path, identification: u16, datagram: &[u8]) {
        self.lock().sent(path, identification, datagram);
    }

    pub(crate) fn received(&self, arrival: &Arrival, datagram: &[u8]) {
        self.lock().received(arrival, datagram);
    }

    /// What was written so far can be read now.
    pub(crate) fn flush(&self) {
        self.lock().flush();
    }

    pub(crate) fn state(&self) -> CaptureState {
        let writer = self.lock();
        CaptureState {
            recorded: writer.recorded(),
            skipped: writer.skipped(),
            failure: writer.failure().map(io::Error::kind),
        }
    }
}
