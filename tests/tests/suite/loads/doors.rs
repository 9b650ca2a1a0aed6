//! The common suite for encrypted and authenticated connections: TLS, client certificates, signed
//! and static tokens.

mod rust {
    leasehold_tests::play_doors! { Rust }
}

mod python {
    leasehold_tests::play_doors! { Python }
}

mod go {
    leasehold_tests::play_doors! { Go }
}

mod java {
    leasehold_tests::play_doors! { Java }
}

mod typescript {
    leasehold_tests::play_doors! { TypeScript }
}
