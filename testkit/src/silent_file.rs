//! A file whose pages come when a test says so: the root of a file system in user space (fuse(4)).

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// Operations of the protocol that this file answers, and those that expect no answer.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// Bytes of the head of a request.
const HEAD: usize = 40;
/// Where the size of a READ stands in it.
const READ_SIZE: usize = HEAD + 16;
/// Bytes that a request may have.
const REQUEST: usize = 1 << 18;
/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(1);

/// A file of zeros, none of which is read before [`let_go`](Self::let_go). Who reaches for its
/// pages meanwhile waits. They fail when it is dropped, or the process ends.
#[derive(Debug)]
pub struct SilentFile {
    /// Taken when this is dropped.
    file: Option<File>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    length: u64,
    /// Reads are answered.
    answers: AtomicBool,
    is_over: AtomicBool,
    waiting: AtomicUsize,
}

impl SilentFile {
    /// A file of `length` bytes.
    ///
    /// # Errors
    /// This process may not mount a file system, or the machine has none in user space.
    pub fn new(length: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            length,
            answers: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        });
        let place = Place::new()?;
        let (serving, path) = (Arc::clone(&shared), place.0.clone());
        let (sender, mounted) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            let server = Server::mount(serving, &path);
            let (server, told) = match server {
                Ok(server) => (Some(server), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // Whoever asked waits for it.
            let _ = sender.send(told);
            if let Some(server) = server {
                server.serve();
            }
        });
        mounted.recv().map_err(io::Error::other)??;
        let opened = File::options().read(true).write(true).open(&place.0);
        unmount(&place.0, UnmountFlags::DETACH)?;
        let file = opened?;
        // The kernel knows no length before it has asked.
        file.metadata()?;
        Ok(Self {
            file: Some(file),
            shared,
            thread: Some(thread),
        })
    }

    /// The file, open for reading and writing.
    pub fn file(&self) -> &File {
        let file = self.file.as_ref();
        file.expect("it is there until this is dropped")
    }

    /// How many reads wait at the moment.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// Answers what waits, and from here on whatever comes.
    pub fn let_go(&self) {
        self.shared.answers.store(true, Ordering::SeqCst);
    }
}

impl Drop for SilentFile {
    fn drop(&mut self) {
        // To close it is a question that has to be answered.
        drop(self.file.take());
        // The only descriptor of /dev/fuse goes with the thread, and all requests fail then.
        self.shared.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

/// A file to mount on, removed with this.
struct Place(PathBuf);

impl Place {
    fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("silent-file-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        File::create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let path: &Path = &self.0;
        // It is in a folder of temporary files.
        let _ = std::fs::remove_file(path);
    }
}

/// The file system.
struct Server {
    fuse: File,
    shared: Arc<Shared>,
    /// Reads that wait, as number and bytes.
    held: Vec<(u64, u32)>,
}

impl Server {
    /// For the thread that is to serve: nobody else has the descriptor, so that it is closed when
    /// the thread ends, even where the process is killed while others of its threads wait.
    fn mount(shared: Arc<Shared>, place: &Path) -> io::Result<Self> {
        have_own_descriptors()?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fuse = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        let number = fuse.as_raw_fd();
        let options = format!("fd={number},rootmode=100666,user_id=0,group_id=0,allow_other");
        let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("silent", place, "fuse", flags, &*options)?;
        Ok(Self {
            fuse: fuse.into(),
            shared,
            held: Vec::new(),
        })
    }

    fn serve(mut self) {
        let mut request = vec![0; REQUEST];
        while !self.shared.is_over.load(Ordering::SeqCst) {
            if self.shared.answers.load(Ordering::SeqCst) {
                for (unique, size) in std::mem::take(&mut self.held) {
                    self.answer(unique, 0, &vec![0; size.div_ceil(4) as usize]);
                }
            }
            self.shared.waiting.store(self.held.len(), Ordering::SeqCst);
            match self.fuse.read(&mut request) {
                Ok(length) if length >= HEAD => self.heed(&request[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK),
                // A request that was interrupted before it was read.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                _ => return,
            }
        }
    }

    fn heed(&mut self, request: &[u8]) {
        let (operation, unique) = (word(request, 4), u64_at(request, 8));
        match operation {
            FORGET | INTERRUPT => {}
            // Version 7.31 without any of its extensions, and writes of a page.
            INIT => self.answer(
                unique,
                0,
                &[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ),
            GETATTR => self.answer(unique, 0, &self.attributes()),
            OPEN => self.answer(unique, 0, &[0; 4]),
            READ => self.held.push((unique, word(request, READ_SIZE))),
            _ => self.answer(unique, -rustix::io::Errno::NOSYS.raw_os_error(), &[]),
        }
    }

    /// They hold for an hour: inode 1, a file that everybody may read and write.
    fn attributes(&self) -> [u32; 26] {
        let mut words = [0; 26];
        words[0] = 3600;
        words[4] = 1;
        words[6] = self.shared.length as u32;
        words[7] = (self.shared.length >> 32) as u32;
        (words[19], words[20]) = (0o100_666, 1);
        words[24] = 4096;
        words
    }

    fn answer(&self, unique: u64, error: i32, words: &[u32]) {
        let length = 16 + 4 * words.len() as u32;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(error.to_ne_bytes());
        message.extend(unique.to_ne_bytes());
        message.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        // Who asked may not wait any more.
        let _ = (&self.fuse).write(&message);
    }
}

/// Gives this thread descriptors that no other one has: the standard ones alone.
#[allow(unsafe_code, reason = "close_range(2) is wrapped by nobody")]
fn have_own_descriptors() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_UNSHARE as libc::c_int;
    // SAFETY: those of other threads are copies from here on, and this one has none of its own.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn word(request: &[u8], at: usize) -> u32 {
    request[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
}

fn u64_at(request: &[u8], at: usize) -> u64 {
    request[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::time::Instant;

    #[test]
    fn who_reads_waits_until_it_is_let_go() {
        let silent = match SilentFile::new(8192) {
            Ok(silent) => silent,
            Err(error) => return eprintln!("not run: no file system in user space: {error}"),
        };
        let file = silent.file().try_clone();
        let reading = std::thread::spawn(move || {
            let mut got = [1; 10];
            file?.read_exact_at(&mut got, 100).map(|()| got)
        });
        let end = Instant::now() + Duration::from_secs(10);
        while silent.waiting() == 0 {
            assert!(Instant::now() < end, "nobody reads");
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(!reading.is_finished());
        silent.let_go();
        let got = reading.join().map(|got| got.map_err(|e| e.to_string()));
        assert!(matches!(got, Ok(Ok([0, ..]))), "{got:?}");
    }
}
