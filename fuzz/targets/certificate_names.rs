//! Fuzzes the parser of names in certificates. The input is tried as the extension for subject
//! alternative names, and as a certificate.
#![no_main]

use std::sync::LazyLock;

use leasehold_server::fuzzing::certificate_names;
use libfuzzer_sys::fuzz_target;
use rcgen::{CertificateParams, CustomExtension, KeyPair};

const SUBJECT_ALT_NAME: [u64; 4] = [2, 5, 29, 17];

static KEY: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate().expect("a key"));

fuzz_target!(|input: &[u8]| {
    certificate_names(input);
    let names = CustomExtension::from_oid_content(&SUBJECT_ALT_NAME, input.to_vec());
    let mut certificate = CertificateParams::default();
    certificate.custom_extensions.push(names);
    let certificate = certificate.self_signed(&*KEY).expect("a certificate");
    certificate_names(certificate.der());
});
