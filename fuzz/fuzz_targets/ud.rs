//! See `trunkline_fuzz::ud`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::ud::ud(data));
