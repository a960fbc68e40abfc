//! See `trunkline_fuzz::connections`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::connections::connections(data));
