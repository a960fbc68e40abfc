//! Variables of the environment.

use std::ffi::OsString;

/// The value of a variable; one that is empty counts as not set.
pub(crate) fn get(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
