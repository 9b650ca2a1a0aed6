//! Fuzzes the frame monitor of connections.
#![no_main]

use leasehold_server::fuzzing::http2_frames;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| http2_frames(input));
