//! See `trunkline_fuzz::delivery`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::delivery::delivery(data));
