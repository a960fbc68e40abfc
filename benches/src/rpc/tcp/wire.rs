//! Bytes in and out of a TCP connection, as few system calls as may be.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes that a read takes at most.
const READ: usize = 1 << 16;

thread_local! {
    /// Where all connections of a thread read to: it stays in the cache, however many they are.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into());
}

/// A connection with what has been read and not consumed, and what is to be written.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// The beginning of an entry whose end has not come.
    rest: Vec<u8>,
    /// What is to be written.
    pub(super) out: Vec<u8>,
    /// How much of it is written.
    written: usize,
}

impl Wire {
    /// # Errors
    /// The connection is gone already.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            rest: Vec::new(),
            out: Vec::new(),
            written: 0,
        })
    }

    /// Reads once and gives the bytes to `take`, behind those that it left last time; `take` gives
    /// how many it leaves.
    ///
    /// # Errors
    /// The connection is gone, or the error of `take`.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> Poll<io::Result<()>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut bytes = ReadBuf::new(buffer);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut bytes))?;
            let bytes = bytes.filled();
            if bytes.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            if self.rest.is_empty() {
                let left = take(bytes)?;
                self.rest.extend_from_slice(&bytes[bytes.len() - left..]);
            } else {
                self.rest.extend_from_slice(bytes);
                let left = take(&self.rest)?;
                self.rest.drain(..self.rest.len() - left);
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Writes all of `out`; it is empty then.
    ///
    /// # Errors
    /// The connection is gone.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            let bytes = &self.out[self.written..];
            self.written += ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}
