//! Fuzzes the decoding of messages and headers of clients.
#![no_main]

use leasehold_server::fuzzing::grpc_request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| grpc_request(input));
