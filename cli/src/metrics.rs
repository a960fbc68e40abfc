//! `--metrics`: what the command's node counts, for Prometheus to scrape over HTTP.

use crate::{print_line, taken};
use anyhow::{Context, Result};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use trunkline::Node;

/// The path that is answered.
const PATH: &str = "/metrics";
/// What its answer is.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What is said where there is no node: nothing, whole.
const NOTHING: &str = "# EOF\n";
/// How long a client may take to ask, and to ask and take its answer.
const PATIENCE: Duration = Duration::from_secs(2);
const WHOLE: Duration = Duration::from_secs(10);
/// Clients that are served at a time; others wait.
const CLIENTS: usize = 64;
/// Pause after a client could not be taken, for want of descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);

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
        let listener = TcpListener::bind(address)
            .map_err(|error| taken::refused(address, error, "--metrics"))?;
        let local = listener.local_addr().context("socket for metrics")?;
        listener
            .set_nonblocking(true)
            .context("socket for metrics")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("runtime for metrics")?;
        let node = Arc::clone(&metrics.0);
        let listener = {
            let _runtime = runtime.enter();
            tokio::net::TcpListener::from_std(listener).context("socket for metrics")?
        };
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || runtime.block_on(serve_all(listener, node)))
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

/// Takes clients for ever: each has a task of its own, so that none waits for another.
async fn serve_all(listener: tokio::net::TcpListener, node: Arc<Mutex<Option<Node>>>) {
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let answer = answer(&request, &node);
                async { Ok::<_, Infallible>(answer) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A client that left again, or one that does not ask, is its own concern.
            let _ = timeout(WHOLE, served).await;
            drop(place);
        });
    }
}

fn answer<T>(request: &Request<T>, node: &Mutex<Option<Node>>) -> Response<String> {
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (_, path) if path != PATH => (StatusCode::NOT_FOUND, "text/plain", format!("see {PATH}\n")),
        (&Method::GET | &Method::HEAD, _) => {
            let node = lock(node);
            let text = node.as_ref().map(Node::metrics);
            let text = text.unwrap_or_else(|| NOTHING.to_owned());
            (StatusCode::OK, OPEN_METRICS, text)
        }
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "only GET and HEAD\n".to_owned(),
        ),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
