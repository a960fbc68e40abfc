//! What keeps a service that ends when nobody uses it.

use crate::attached::{ServiceAddress, connect_to};
use crate::error::Error;
use crate::node::life::Down;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use trunkline_host::control::answers::{Detached, Refused};
use trunkline_host::control::attributes::Reason;
use trunkline_host::control::requests::{self, Magic};
use trunkline_host::control::{Answer, MAX_MESSAGE, Request, VERSION};
use trunkline_host::socket::{SocketError, peer, recv_with_fds, send_with_fds};

/// Keeps a service from ending for want of programs
/// ([`Service::end_when_idle`](super::Service::end_when_idle)): who starts a program that is to
/// attach holds the service until then. Processes that inherit the descriptor hold it, too; it
/// ends with the last of them. To the limits of the service it is a program of its user.
#[derive(Debug)]
pub struct Hold {
    socket: OwnedFd,
}

impl Hold {
    /// Holds the service at the socket of that `path`, which is as
    /// [`Node::attach`](crate::Node::attach) takes it; `None`: nobody serves there, or the service
    /// is just ending.
    ///
    /// # Errors
    /// [`Error::Down`]: the service refuses, and says why. [`Error::System`]: the path is no
    /// address of a socket, the service does not answer within 10 seconds, or the operating system
    /// refuses.
    pub fn take(path: impl AsRef<Path>) -> Result<Option<Self>, Error> {
        let address = ServiceAddress::of(path.as_ref())?;
        let socket = match connect_to(&address) {
            Ok(socket) => socket,
            Err(Error::System { source, .. })
                if matches!(
                    source.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let request = requests::Hold {
            magic: Magic,
            version: VERSION,
        };
        let message = Request::from(request).to_bytes(1);
        // Where it fails the service has closed its end, and may have said why.
        let _ = send_with_fds(socket.as_fd(), &message, &[]);
        let mut buffer = Box::new([0; MAX_MESSAGE]);
        let received = match recv_with_fds(socket.as_fd(), &mut buffer) {
            Ok(Some(received)) => received,
            Err(SocketError::System(error)) if error.kind() == ErrorKind::WouldBlock => {
                return Err(address.silent());
            }
            Ok(None) | Err(_) => return Ok(None),
        };
        match Answer::parse(&buffer[..received.bytes]) {
            Ok((_, answer)) => heard(&answer).map(|holds| holds.then_some(Self { socket })),
            Err(_) => Err(broken()),
        }
    }

    /// The process of the service, if it can be told from here.
    pub fn pid(&self) -> Option<u32> {
        peer(self.socket.as_fd()).ok()?.pid.map(Into::into)
    }
}

/// What a service answers: whether it is held, or ends.
fn heard(answer: &Answer) -> Result<bool, Error> {
    match answer {
        Answer::Done(_) => Ok(true),
        Answer::Refused(Refused {
            reason: Reason::Ending,
            ..
        }) => Ok(false),
        Answer::Refused(Refused { text, .. }) | Answer::Detached(Detached { text, .. }) => {
            let why = text.as_str().into();
            Err(Down::Service { why }.into())
        }
        _ => Err(broken()),
    }
}

fn broken() -> Error {
    let why = "it is of another version, or broken".into();
    Down::Service { why }.into()
}

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
