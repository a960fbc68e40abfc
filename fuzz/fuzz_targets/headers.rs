//! See `trunkline_fuzz::wire`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::wire::headers(data));
