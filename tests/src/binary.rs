//! Where the broker's binary is: in the build directory of the running test.

use std::path::PathBuf;

/// The `leasehold-server` built with this test's profile.
#[must_use]
pub fn leasehold_server() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let path = test
        .ancestors()
        .map(|folder| folder.join("leasehold-server"))
        .find(|path| path.is_file());
    path.expect("build the broker first: cargo build -p leasehold-server")
}
