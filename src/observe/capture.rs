//! Management datagrams, written down.

use crate::error::Error;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};
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

    /// Writes, unless the program's writer has panicked: the file may end within a packet.
    fn write(&self, write: impl FnOnce(&mut Writer)) {
        if let Ok(mut writer) = self.0.lock() {
            write(&mut writer);
        }
    }

    pub(crate) fn sent(&self, path: &Path, identification: u16, datagram: &[u8]) {
        self.write(|writer| writer.sent(path, identification, datagram));
    }

    pub(crate) fn received(&self, arrival: &Arrival, datagram: &[u8]) {
        self.write(|writer| writer.received(arrival, datagram));
    }

    /// What was written so far can be read now.
    pub(crate) fn flush(&self) {
        self.write(Writer::flush);
    }

    pub(crate) fn state(&self) -> CaptureState {
        let panicked = self.0.is_poisoned().then_some(io::ErrorKind::Other);
        let writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        CaptureState {
            recorded: writer.recorded(),
            skipped: writer.skipped(),
            failure: writer.failure().map(io::Error::kind).or(panicked),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Panics whenever something is written.
    struct Broken(Arc<AtomicU32>);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("the disk is on fire")
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_writer_that_panics_ends_the_capture() {
        let written = Arc::new(AtomicU32::new(0));
        let capture = Capture::new(Box::new(Broken(Arc::clone(&written)))).unwrap();
        assert_eq!(capture.state().failure, None);
        catch_unwind(AssertUnwindSafe(|| capture.flush())).unwrap_err();
        capture.flush();
        assert_eq!(capture.state().failure, Some(io::ErrorKind::Other));
        assert_eq!(written.load(Ordering::Relaxed), 1);
    }
}
