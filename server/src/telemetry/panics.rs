//! Panic hook that logs each panic as one line.

use std::panic;

/// Installs the hook in place of Rust's default one.
pub(super) fn log() {
    panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("no panic message");
        let location = info.location().map(ToString::to_string);
        tracing::error!(place = location, "internal error: panic: {message}");
    }));
}

#[cfg(test)]
mod tests {
    use std::{env, fs, fs::File, process, sync::Arc};

    use super::*;

    #[test]
    fn a_panic_is_one_line_of_the_log() {
        let path = env::temp_dir().join(format!("leasehold-panic-{}", process::id()));
        let file = File::create(&path).expect("a file");
        let subscriber = tracing_subscriber::fmt().json().with_writer(Arc::new(file));
        tracing::subscriber::with_default(subscriber.finish(), || {
            log();
            let panicking = || panic!("this\nwas not expected");
            panic::catch_unwind(panicking).expect_err("it panics");
            drop(panic::take_hook());
        });
        let output = fs::read_to_string(&path).expect("a log");
        fs::remove_file(&path).expect("it is there");
        assert_eq!(output.lines().count(), 1, "{output}");
        for part in ["ERROR", r"internal error: panic: this\nwas", "panics.rs:"] {
            assert!(output.contains(part), "{part}: {output}");
        }
    }
}
