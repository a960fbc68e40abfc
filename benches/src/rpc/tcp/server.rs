//! The server: a task for each connection answers all requests of a read with one write.

use super::frame::{Kind, parse};
use super::wire::Wire;
use anyhow::Result;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll, ready};
use tokio::net::{TcpListener, TcpStream};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;

/// What a server does with bytes that came: it appends what it answers, and gives how many bytes
/// it leaves.
type Answer = fn(&[u8], &mut Vec<u8>) -> io::Result<usize>;

/// Answers each request with its own bytes.
pub(super) fn echo(bytes: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
    let mut left = bytes;
    while let Some((request, rest)) = parse(Kind::Request, left)? {
        request.emit(Kind::Answer, out);
        left = rest;
    }
    Ok(left.len())
}

/// Gives all bytes back as they came.
pub(super) fn reflect(bytes: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
    out.extend_from_slice(bytes);
    Ok(0)
}

/// Listens at a free port, in tasks of this runtime. Gives where.
///
/// # Errors
/// The address cannot be bound.
pub(super) fn listen(address: IpAddr, answer: Answer) -> Result<SocketAddr> {
    let socket = match address {
        IpAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        IpAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    socket.bind((address, 0).into())?;
    let listener = socket.listen(BACKLOG)?;
    let at = listener.local_addr()?;
    tokio::spawn(accept(listener, answer));
    Ok(at)
}

async fn accept(listener: TcpListener, answer: Answer) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(stream, answer));
    }
}

async fn serve(stream: TcpStream, answer: Answer) -> io::Result<()> {
    let mut wire = Wire::new(stream)?;
    poll_fn(|cx| turn(&mut wire, answer, cx)).await
}

/// Answers what there is; ends with an error, that the client is gone usually.
fn turn(wire: &mut Wire, answer: Answer, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    loop {
        // A client that reads no answers is not read either.
        ready!(wire.poll_flush(cx))?;
        let mut out = std::mem::take(&mut wire.out);
        let read = wire.poll_read(cx, |bytes| answer(bytes, &mut out));
        wire.out = out;
        ready!(read)?;
    }
}
