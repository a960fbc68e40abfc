//! Why a device cannot be opened, or is down, on standard error: programs show an error number at
//! most.

use crate::node::MAX_DEVICES;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use trunkline::{Error, UdpOpenError};

/// What was said last of each device. Programs try again, and the same is not said twice.
static SAID: Mutex<[String; MAX_DEVICES]> = Mutex::new([const { String::new() }; MAX_DEVICES]);

/// Says why a device cannot be opened.
pub(crate) fn complain(device: usize, why: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = &mut said[device];
    if *said != why {
        say(device, &format!("cannot be opened: {why}"));
        why.clone_into(said);
    }
}

/// Says something of a device.
pub(crate) fn say(device: usize, what: &str) {
    // Where nobody listens there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{}", line(device, what));
}

fn line(device: usize, what: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let what: String = what.chars().map(plain).collect();
    format!("libibverbs (Trunkline): trunk{device} {what}")
}

/// What an error of a node inside the program means for its user.
pub(crate) fn of_node(error: &Error) -> String {
    match error {
        Error::Open(UdpOpenError::InUse { .. }) => format!(
            "{error}; if that is a service, name its socket in TRUNKLINE_SOCKET, or set another \
             address in TRUNKLINE_ADDRESS"
        ),
        _ => error.to_string(),
    }
}

/// What an error of attaching to a service means for its user.
pub(crate) fn of_service(error: &Error) -> String {
    match error {
        Error::System { source, .. }
            if matches!(
                source.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            format!("{error}; start one (trunkline serve), or the program with trunkline run")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_one_line() {
        let expected = "libibverbs (Trunkline): trunk1 is down: no  way";
        assert_eq!(line(1, "is down: no\n\x1bway"), expected);
    }
}
