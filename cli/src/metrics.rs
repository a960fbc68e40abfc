//! `--metrics`: what the command's node counts, for Prometheus to scrape over HTTP.

use crate::print_line;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trunkline::Node;

/// The path that is answered.
const PATH: &str = "/metrics";
/// What its answer is.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What is said where there is no node: nothing, whole.
const NOTHING: &str = "# EOF\n";
/// Longest request.
const MOST: usize = 16 << 10;
/// How long a client may take to ask, and for each part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The node that there is at the moment, if any, and a thread that tells of it.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Arc<Mutex<Option<Node>>>);

/// A node whose metrics are told; dropping this ends that, so that the node may end.
#[derive(Debug)]
pub(crate) struct Shown<'a>(&'a Metrics);

impl Metrics {
    /// Answers at `address`, if there is one, until the process ends. Returns the address with the
    /// port that was taken, too.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(crate) fn serve(address: Option<SocketAddr>) -> Result<(Self, Option<SocketAddr>)> {
        let metrics = Self::default();
        let Some(address) = address else {
            return Ok((metrics, None));
        };
        let listener = TcpListener::bind(address);
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        let local = listener.local_addr().context("socket for metrics")?;
        let node = Arc::clone(&metrics.0);
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                for stream in listener.incoming() {
                    // A client that left again, or one that does not ask: the next one may.
                    let _ = stream.and_then(|stream| answer(stream, &node));
                }
            })
            .context("thread for metrics")?;
        Ok((metrics, Some(local)))
    }

    /// Tells of this node from now on.
    pub(crate) fn show(&self, node: &Node) -> Shown<'_> {
        *lock(&self.0) = Some(node.clone());
        Shown(self)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        *lock(&self.0.0) = None;
    }
}

/// Says where metrics are told.
pub(crate) fn say(address: SocketAddr) {
    print_line(&format!("metrics at http://{address}{PATH}"));
}

fn lock(node: &Mutex<Option<Node>>) -> MutexGuard<'_, Option<Node>> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request, one answer.
fn answer(mut stream: TcpStream, node: &Mutex<Option<Node>>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_head(&mut stream)?;
    let mut words = request.split_ascii_whitespace();
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some(PATH)) => {
            let node = lock(node);
            let text = node
                .as_ref()
                .map_or_else(|| NOTHING.to_owned(), Node::metrics);
            ("200 OK", OPEN_METRICS, text)
        }
        (Some("GET"), Some(_)) => ("404 Not Found", "text/plain", format!("see {PATH}\n")),
        (Some(_), Some(_)) => (
            "405 Method Not Allowed",
            "text/plain",
            "only GET\n".to_owned(),
        ),
        _ => ("400 Bad Request", "text/plain", "no request\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads up to the empty line that ends the head of a request.
fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        // A socket refuses to wait for no time: that ends it, too.
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut chunk)?;
        head.extend_from_slice(&chunk[..count]);
        if count == 0 || head.len() > MOST {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
