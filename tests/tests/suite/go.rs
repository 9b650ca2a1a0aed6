//! The common suite, run with the Go client.

leasehold_tests::play!(Go beside Go);

mod go_and_rust {
    leasehold_tests::play_together!(Go and Rust);
}

mod rust_and_go {
    leasehold_tests::play_together!(Rust and Go);
}
