//! See `trunkline_fuzz::host`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::host::control(data));
