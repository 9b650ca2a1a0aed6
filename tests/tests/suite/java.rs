//! The common suite, run with the Java client.

leasehold_tests::play!(Java beside Java);

mod java_and_rust {
    leasehold_tests::play_together!(Java and Rust);
}

mod rust_and_java {
    leasehold_tests::play_together!(Rust and Java);
}
