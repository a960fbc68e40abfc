//! See `trunkline_fuzz::handshakes`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::handshakes::handshakes(data));
