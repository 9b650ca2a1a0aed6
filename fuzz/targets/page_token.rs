//! Tokens by which lists go on.
#![no_main]

use leasehold_server::fuzzing::page_token;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| page_token(input));
