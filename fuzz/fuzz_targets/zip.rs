#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| archfs::formats::fuzzing::zip(data));
