//! See `trunkline_fuzz::transactions`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::transactions::transactions(data));
