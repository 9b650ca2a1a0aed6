//! Fuzzes the parser of page tokens of lists.
#![no_main]

use leasehold_server::fuzzing::page_token;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| page_token(input));
