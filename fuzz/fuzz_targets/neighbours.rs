//! See `trunkline_fuzz::neighbours`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::neighbours::neighbours(data));
