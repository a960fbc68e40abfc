//! See `trunkline_fuzz::uc`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::uc::uc(data));
