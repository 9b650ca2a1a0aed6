//! The common suite, run with the Python client.

leasehold_tests::play!(Python beside Python);

mod python_and_rust {
    leasehold_tests::play_together!(Python and Rust);
}

mod rust_and_python {
    leasehold_tests::play_together!(Rust and Python);
}
