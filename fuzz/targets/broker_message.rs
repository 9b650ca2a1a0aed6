//! Fuzzes the parser of messages that brokers publish to each other.
#![no_main]

use leasehold_server::fuzzing::broker_message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| broker_message(input));
