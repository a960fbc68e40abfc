//! The programs in the guides, which are run as tests of the documentation.

#[doc = include_str!("../docs/errors.md")]
mod errors {}
#[doc = include_str!("../docs/service.md")]
mod service {}
#[doc = include_str!("../docs/shutdown.md")]
mod shutdown {}
#[doc = include_str!("../docs/threads.md")]
mod threads {}
