//! How programs and services end. A program of its own, as these tests count what the process has.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;
#[path = "service/life.rs"]
mod life;
