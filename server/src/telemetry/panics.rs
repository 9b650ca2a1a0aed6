//! Panics: one line of the log each, like any other fault.

use std::panic;

/// From now on, instead of what Rust prints by itself.
pub(super) fn log() {
    panic::set_hook(Box::new(|info| {
        let why = info.payload_as_str().unwrap_or("no reason was given");
        let place = info.location().map(ToString::to_string);
        tracing::error!(place, "a fault of the broker: {why}");
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
        let lines = tracing_subscriber::fmt().json().with_writer(Arc::new(file));
        tracing::subscriber::with_default(lines.finish(), || {
            log();
            let fault = || panic!("this\nwas not expected");
            panic::catch_unwind(fault).expect_err("it panics");
            drop(panic::take_hook());
        });
        let told = fs::read_to_string(&path).expect("a log");
        fs::remove_file(&path).expect("it is there");
        assert_eq!(told.lines().count(), 1, "{told}");
        for part in ["ERROR", r"a fault of the broker: this\nwas", "panics.rs:"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
