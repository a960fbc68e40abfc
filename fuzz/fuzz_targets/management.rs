//! See `trunkline_fuzz::packet`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::packet::management(data));
