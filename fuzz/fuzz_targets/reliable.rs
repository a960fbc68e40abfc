//! See `trunkline_fuzz::rc`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::rc::reliable(data));
