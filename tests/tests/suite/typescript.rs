//! The common suite, run with the TypeScript client.

leasehold_tests::play!(TypeScript beside TypeScript);

mod typescript_and_rust {
    leasehold_tests::play_together!(TypeScript and Rust);
}

mod rust_and_typescript {
    leasehold_tests::play_together!(Rust and TypeScript);
}
