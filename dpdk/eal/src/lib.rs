//! The environment of DPDK (its EAL): memory and drivers, which a process sets up once, and which
//! all ports of it share.
//!
//! C code that fails may end the process. So the environment is tried in a child first: what that
//! says becomes an error, and the process lives.

mod arguments;
mod folders;
mod thread;
mod trial;

pub use arguments::{Arguments, check, free_huge_bytes};
pub use thread::enter;
pub use trial::EalError;

use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use trunkline_dpdk_sys as sys;

/// Proof that the environment is set up.
#[derive(Clone, Copy, Debug)]
pub struct Eal(());

/// What became of the environment of this process.
#[derive(Debug)]
enum State {
    Runs {
        /// What it was asked for.
        arguments: Arguments,
    },
    /// It cannot be set up twice.
    Failed(EalError),
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// Devices come and go one after the other.
static CONTROL: Mutex<()> = Mutex::new(());

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something that no two threads may do at once.
pub fn alone<T>(act: impl FnOnce() -> T) -> T {
    let _turn = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
    act()
}

/// Sets the environment up as `wanted`, unless that is done.
///
/// # Errors
/// It does not start, or was set up for something else.
pub fn start(wanted: Arguments) -> Result<Eal, EalError> {
    let mut state = state();
    match &*state {
        Some(State::Runs { arguments }) => {
            return arguments.serve(&wanted).map(|()| Eal(()));
        }
        Some(State::Failed(error)) => return Err(error.clone()),
        None => {}
    }
    trial::run(&wanted)?;
    // What was tried may still fail, and then for good.
    let started = start_here(&wanted);
    *state = Some(match &started {
        Ok(_) => State::Runs { arguments: wanted },
        Err(error) => State::Failed(error.clone()),
    });
    started
}

/// Whether the environment would start, without starting it here.
///
/// # Errors
/// It would not.
pub fn look(wanted: &Arguments) -> Result<(), EalError> {
    match &*state() {
        Some(State::Runs { .. }) => Ok(()),
        Some(State::Failed(error)) => Err(error.clone()),
        None => trial::run(wanted),
    }
}

/// Starts it on a thread of its own, which DPDK binds to processors as it likes.
fn start_here(wanted: &Arguments) -> Result<Eal, EalError> {
    let kept = sys::trunkline_keep_log();
    if kept != 0 {
        tracing::debug!(code = kept, "DPDK writes what it logs to standard error");
    }
    let (tell, told) = channel();
    let arguments = wanted.clone();
    let run = move || on_thread(&arguments, &tell);
    let thread = std::thread::Builder::new().name("dpdk-eal".to_owned());
    thread
        .spawn(run)
        .map_err(|error| EalError::system("pthread_create", &error))?;
    let code = told.recv().unwrap_or(-libc::EIO);
    let said = log();
    if code != 0 {
        folders::remove_own();
        return Err(EalError::Refused {
            arguments: wanted.to_string(),
            said: trial::summary(&said, code),
        });
    }
    tracing::debug!(%wanted, said, "DPDK is set up");
    remove_folder();
    Ok(Eal(()))
}

/// The thread lives as long as the process: DPDK knows it as its first.
fn on_thread(arguments: &Arguments, tell: &Sender<i32>) {
    let (count, words) = arguments.leak();
    // SAFETY: these texts are leaked.
    let code = unsafe { sys::trunkline_init(count, words) };
    let _ = tell.send(code);
    if code == 0 {
        loop {
            std::thread::park();
        }
    }
}

/// Without other processes nothing gets into the folder that DPDK makes for what they share.
fn remove_folder() {
    // SAFETY: the environment is set up.
    let folder = unsafe { sys::trunkline_runtime_dir() };
    if folder.is_null() {
        return;
    }
    // SAFETY: a text that ends with a zero, and stays.
    let folder = unsafe { CStr::from_ptr(folder) };
    // If something is in it after all, it stays.
    let _ = std::fs::remove_dir(PathBuf::from(folder.to_string_lossy().into_owned()));
}

/// What DPDK logged since the last time.
pub fn log() -> String {
    let mut text = vec![0_u8; 4096];
    let to = text.as_mut_ptr().cast::<c_char>();
    // SAFETY: there is so much room.
    let length = unsafe { sys::trunkline_log(to, text.len()) };
    text.truncate(length);
    String::from_utf8_lossy(&text).into_owned()
}

/// The version, as "DPDK 22.11.11".
pub fn version() -> String {
    // SAFETY: a text that ends with a zero, and stays.
    let version = unsafe { CStr::from_ptr(sys::trunkline_version()) };
    version.to_string_lossy().into_owned()
}

/// What DPDK calls an error; `code` is negative.
pub fn error_text(code: i32) -> String {
    let text = sys::trunkline_error(code.saturating_neg());
    if text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: a text that ends with a zero, and stays until the next call of this thread.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
