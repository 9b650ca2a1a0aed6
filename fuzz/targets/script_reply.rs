//! Fuzzes the parser of Redis replies: of scripts, and about the server.
#![no_main]

use leasehold_server::fuzzing::script_reply;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| script_reply(input));
