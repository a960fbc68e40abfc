#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod floods;
mod hostile;
mod kernel;
mod program;
mod refusals;
mod world;
