//! Lists of services in a variable of the environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// What stands between commas in a list of sockets or addresses, a device for each. Nothing counts
/// as not there.
pub fn several(list: &OsStr) -> impl Iterator<Item = &OsStr> {
    let each = list.as_bytes().split(|byte| *byte == b',');
    each.filter(|one| !one.is_empty()).map(OsStr::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_between_commas_is_not_there() {
        let of = |list| several(OsStr::new(list)).collect::<Vec<_>>();
        assert_eq!(of("/a b,@c"), ["/a b", "@c"]);
        assert_eq!(of(",127.0.0.1,,::1,"), ["127.0.0.1", "::1"]);
        assert!(of("").is_empty() && of(",").is_empty());
    }
}
