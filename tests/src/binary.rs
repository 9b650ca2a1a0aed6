//! Which binaries tests start: the broker and the command line of this build, and the server and the
//! client of the store.

use std::path::PathBuf;

const STORE_SERVER: &str = "STORE_SERVER";
const REDIS_SERVER: &str = "redis-server";

/// The `leasehold-server` built with this test's profile.
#[must_use]
pub fn leasehold_server() -> PathBuf {
    built("leasehold-server").expect("build the broker first: cargo build -p leasehold-server")
}

/// The command line `leasehold`, built with this test's profile.
#[must_use]
pub fn leasehold() -> PathBuf {
    built("leasehold").expect("build the command line first: cargo build -p leasehold-cli")
}

fn built(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().expect("a test knows its own path");
    let mut paths = test.ancestors().map(|folder| folder.join(name));
    paths.find(|path| path.is_file())
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
