//! See `trunkline_fuzz::messages`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_fuzz::messages::rpc(data));
