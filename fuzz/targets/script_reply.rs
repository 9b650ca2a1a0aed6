//! Replies of Redis: of scripts, and those about the server.
#![no_main]

use leasehold_server::fuzzing::script_reply;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| script_reply(input));
