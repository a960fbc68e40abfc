//! The client: calls of any number of tasks over one connection, which has a task of its own.
//!
//! What is called while that task sleeps or has not had its turn goes out with one write.

use super::frame::{Entry, Kind, parse};
use super::wire::Wire;
use crate::rpc::load::Caller;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use tokio::net::TcpStream;

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct Client(Arc<Shared>);

impl Client {
    /// Connects, with a task of this runtime.
    ///
    /// # Errors
    /// Nobody listens there.
    pub(crate) async fn connect(to: SocketAddr) -> Result<Self> {
        let wire = Wire::new(TcpStream::connect(to).await?)?;
        let shared = Arc::new(Shared::default());
        tokio::spawn(drive(wire, Arc::clone(&shared)));
        Ok(Self(shared))
    }
}

impl Caller for Client {
    async fn call(&self, body: Bytes) -> Result<Bytes> {
        let mut call = Call {
            shared: &self.0,
            id: None,
        };
        poll_fn(|cx| call.poll(&body, cx)).await
    }
}

/// What callers and the connection's task share.
#[derive(Default)]
struct Shared(Mutex<State>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    calls: Vec<Slot>,
    /// The first free one of `calls`.
    free: Option<u32>,
    /// Requests that wait to be written.
    out: Vec<u8>,
    /// The connection's task, where nothing has woken it since it slept.
    task: Option<Waker>,
    /// Why there is no connection any more.
    broken: Option<io::ErrorKind>,
}

/// A number of a call.
enum Slot {
    /// And the next one.
    Free(Option<u32>),
    Waiting(Waker),
    Answered(Bytes),
    /// Nobody waits for the answer any more.
    Abandoned,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Begins a call.
    fn begin(&mut self, body: &[u8], caller: Waker) -> Result<u32> {
        if let Some(why) = self.broken {
            bail!("the TCP connection is gone: {why}");
        }
        let id = self.take_id(Slot::Waiting(caller))?;
        Entry { id, body }.emit(Kind::Request, &mut self.out);
        if let Some(task) = self.task.take() {
            task.wake();
        }
        Ok(id)
    }

    /// A number that no other call has.
    fn take_id(&mut self, waiting: Slot) -> Result<u32> {
        if let Some(id) = self.free {
            let slot = std::mem::replace(&mut self.calls[id as usize], waiting);
            let Slot::Free(next) = slot else {
                unreachable!("the list of free numbers holds free numbers");
            };
            self.free = next;
            return Ok(id);
        }
        let id = u32::try_from(self.calls.len()).context("too many calls")?;
        self.calls.push(waiting);
        Ok(id)
    }

    fn give_back(&mut self, id: u32) -> Slot {
        let free = Slot::Free(self.free.replace(id));
        std::mem::replace(&mut self.calls[id as usize], free)
    }

    /// Hands an answer to who waits for it.
    fn answer(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        match self.calls.get_mut(entry.id as usize) {
            Some(slot @ Slot::Waiting(_)) => {
                let answered = Slot::Answered(Bytes::copy_from_slice(entry.body));
                if let Slot::Waiting(caller) = std::mem::replace(slot, answered) {
                    caller.wake();
                }
            }
            Some(Slot::Abandoned) => {
                self.give_back(entry.id);
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    /// All that wait hear that there is no connection any more.
    fn fail(&mut self, why: io::ErrorKind) {
        self.broken = Some(why);
        for slot in &mut self.calls {
            if let Slot::Waiting(caller) = slot {
                caller.wake_by_ref();
            }
        }
    }
}

/// A call.
struct Call<'a> {
    shared: &'a Shared,
    /// Its number, while it is under way.
    id: Option<u32>,
}

impl Call<'_> {
    fn poll(&mut self, body: &[u8], cx: &Context<'_>) -> Poll<Result<Bytes>> {
        let mut state = self.shared.lock();
        let Some(id) = self.id else {
            self.id = Some(state.begin(body, cx.waker().clone())?);
            return Poll::Pending;
        };
        let broken = state.broken;
        match &mut state.calls[id as usize] {
            Slot::Answered(answer) => {
                let answer = std::mem::take(answer);
                state.give_back(id);
                self.id = None;
                Poll::Ready(Ok(answer))
            }
            Slot::Waiting(caller) => match broken {
                Some(why) => Poll::Ready(Err(io::Error::from(why).into())),
                None => {
                    caller.clone_from(cx.waker());
                    Poll::Pending
                }
            },
            Slot::Free(_) | Slot::Abandoned => unreachable!("this call has its number"),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut state = self.shared.lock();
        let slot = &mut state.calls[id as usize];
        if matches!(slot, Slot::Waiting(_)) {
            // Its number is free when the answer has come.
            *slot = Slot::Abandoned;
        } else {
            state.give_back(id);
        }
    }
}

/// The connection's task.
async fn drive(mut wire: Wire, shared: Arc<Shared>) {
    let Err(error) = poll_fn(|cx| turn(&mut wire, &shared, cx)).await;
    shared.lock().fail(error.kind());
}

/// Hands out all answers that have come, and writes all requests that wait.
fn turn(
    wire: &mut Wire,
    shared: &Shared,
    cx: &mut Context<'_>,
) -> Poll<Result<std::convert::Infallible, io::Error>> {
    while let Poll::Ready(read) = wire.poll_read(cx, |bytes| hand_out(bytes, shared)) {
        read?;
    }
    loop {
        ready!(wire.poll_flush(cx))?;
        let mut state = shared.lock();
        if state.out.is_empty() {
            match &mut state.task {
                Some(task) => task.clone_from(cx.waker()),
                task => *task = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        std::mem::swap(&mut state.out, &mut wire.out);
    }
}

fn hand_out(bytes: &[u8], shared: &Shared) -> io::Result<usize> {
    let (mut left, mut state) = (bytes, shared.lock());
    while let Some((answer, rest)) = parse(Kind::Answer, left)? {
        state.answer(&answer)?;
        left = rest;
    }
    Ok(left.len())
}
