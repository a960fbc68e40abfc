//! How long it takes to register memory of a program at a service, with and without promotion.
//!
//! ```text
//! cargo run --release --example registration
//! ```
#![allow(
    unsafe_code,
    reason = "the memory is the program's own, which is what this measures"
)]
#![allow(clippy::print_stdout, reason = "this is what the program is for")]

use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use trunkline::service::{Limits, Service};
use trunkline::{Access, AttachOptions, Mr, Node, Pd, Promotion};

const PAGE: usize = 4096;
const GIB: usize = 1 << 30;
const SOCKET: &str = "@trunkline-registration";
const ACCESS: Access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);

fn pd(promotion: Promotion) -> Result<Pd, trunkline::Error> {
    Ok(Node::attach_with(SOCKET, &AttachOptions { promotion })?.alloc_pd())
}

fn register(pd: &Pd, memory: &mut [u8]) -> Result<Mr, trunkline::Error> {
    let (base, len) = (NonNull::from_mut(memory).cast(), memory.len());
    // SAFETY: no peer knows the region, which is gone before the memory is.
    unsafe { pd.register_foreign(base, len, ACCESS) }
}

/// Stores to each page.
fn touch(memory: &mut [u8]) {
    for at in (0..memory.len()).step_by(PAGE) {
        memory[at] = memory[at].wrapping_add(1);
    }
}

/// Has a child made by fork(2).
fn fork() -> std::io::Result<Duration> {
    let mut command = Command::new("true");
    // SAFETY: the child does nothing before it becomes another program.
    let command = unsafe { command.pre_exec(|| Ok(())) };
    let start = Instant::now();
    command.status()?;
    Ok(start.elapsed())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut limits = Limits::default();
    limits.segment_bytes = 2 << 30;
    let node = Node::builder().address([127, 0, 0, 77].into()).build()?;
    let _service = Service::start(node, SOCKET, &limits)?;
    let mut memory = vec![1_u8; GIB];
    touch(&mut memory);
    for promotion in [Promotion::Auto, Promotion::Always, Promotion::Always] {
        let pd = pd(promotion)?;
        let start = Instant::now();
        let mr = register(&pd, &mut memory)?;
        let (registered, shared) = (start.elapsed(), mr.shared_len());
        let forked = fork()?;
        let start = Instant::now();
        drop(mr);
        let gone = start.elapsed();
        println!("1 GiB, {promotion:?}: {registered:?}, {shared} bytes shared; gone in {gone:?}");
        println!("a child made, run and ended meanwhile: {forked:?}");
    }
    for promotion in [Promotion::Never, Promotion::Auto] {
        let pd = pd(promotion)?;
        for pages in [1, 16, 1000] {
            let start = Instant::now();
            for _ in 0..100 {
                drop(register(&pd, &mut memory[..(pages + 1) * PAGE - 1])?);
            }
            let each = start.elapsed() / 100;
            println!("{pages} pages, {promotion:?}: registered and gone in {each:?}");
        }
    }
    Ok(())
}
