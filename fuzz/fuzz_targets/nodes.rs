//! See `trunkline_fuzz::nodes`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::nodes::nodes(data));
