//! Which binaries tests start: the broker of this build, and the server and the client of the store.

use std::path::PathBuf;

const STORE_SERVER: &str = "STORE_SERVER";
const REDIS_SERVER: &str = "redis-server";

/// The `leasehold-server` built with this test's profile.
#[must_use]
pub fn leasehold_server() -> PathBuf {
    beside_this_test("leasehold-server")
}

/// A binary of this workspace, built with this test's profile.
#[must_use]
pub fn beside_this_test(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let path = test
        .ancestors()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    path.unwrap_or_else(|| panic!("build {name} first: cargo build --workspace --bins"))
}

/// `redis-server`, or what STORE_SERVER names in its stead: `valkey-server`, or a path.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the tests choose their store by this variable, the broker never sees it"
)]
pub fn store_server() -> PathBuf {
    std::env::var(STORE_SERVER)
        .unwrap_or_else(|_| REDIS_SERVER.to_owned())
        .into()
}

/// The `redis-cli` that belongs to it.
#[must_use]
pub fn store_client() -> PathBuf {
    let server = store_server();
    let name = server.file_name().expect("the name of a program");
    let name = name.to_string_lossy().replace("server", "cli");
    server.with_file_name(name)
}
