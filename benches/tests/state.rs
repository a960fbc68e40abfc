//! What a node says that it keeps is what it has allocated.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use serde_json::Value;
use std::process::Command;

/// What a node that has met 511 peers may keep for them and for 20 QPs without routes, in bytes:
/// 0.095 MiB, half of what the published model of shared connections takes.
const MOST: u64 = 99_614;

#[test]
fn what_a_node_says_that_it_keeps_is_what_it_has_allocated() {
    let state = Command::new(env!("CARGO_BIN_EXE_state"))
        .args(["--peers", "511", "--qps", "20", "--routed", "511"])
        .output()
        .unwrap();
    assert!(state.status.success(), "{state:?}");
    let found: Value = serde_json::from_slice(&state.stdout).unwrap();
    let taken = |of: &str, what: &str| found[of][what].as_u64().unwrap();
    for of in ["of_peers", "of_qps", "of_routed"] {
        let [said, allocated] = ["said", "allocated"].map(|what| taken(of, what));
        assert!(allocated > 0, "{of}");
        let off = said.abs_diff(allocated);
        assert!(
            off * 20 <= allocated,
            "{of}: {said} said, {allocated} allocated"
        );
    }
    let kept = taken("of_peers", "allocated") + taken("of_qps", "allocated");
    assert!(kept <= MOST, "{kept} bytes for 511 peers and 20 QPs");
    let routes = found["routes"].as_u64().unwrap();
    let of_route = (taken("of_routed", "said") - taken("of_peers", "said")) / routes;
    assert!(of_route <= 64, "{of_route} bytes of an idle route");
}
