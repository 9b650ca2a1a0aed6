//! Fuzzes the parser of the configuration file and the environment.
#![no_main]

use leasehold_server::fuzzing::configuration;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| configuration(input));
