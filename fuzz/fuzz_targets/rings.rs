//! See `trunkline_fuzz::rings`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::rings::rings(data));
