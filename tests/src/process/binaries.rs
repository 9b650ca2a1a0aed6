//! Paths of the binaries that tests start: the server and the command line of this build, and the
//! server and the client of the store.

use std::{path::PathBuf, process::Command};

const STORE_SERVER: &str = "STORE_SERVER";
const REDIS_SERVER: &str = "redis-server";

#[must_use]
pub fn leasehold_server() -> PathBuf {
    built_binary("leasehold-server")
}

#[must_use]
pub fn leasehold() -> PathBuf {
    built_binary("leasehold")
}

/// Returns the path of a binary of this workspace, built with this test's profile.
#[must_use]
pub fn built_binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let mut paths = test.ancestors().map(|folder| folder.join(name));
    let path = paths.find(|path| path.is_file());
    path.unwrap_or_else(|| panic!("build {name} first, as `make test` does"))
}

/// Returns the store server: `redis-server`, or the value of STORE_SERVER, such as `valkey-server`
/// or a path.
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

/// Returns the command that starts the store server. The server is killed when the thread that
/// started it ends, because a killed test drops nothing, and stores shared by all tests of a
/// process are never dropped.
#[must_use]
pub fn store_command() -> Command {
    store_command_in(&[])
}

/// Returns the command of [`store_command`], with the server run by a program, such as valgrind.
#[must_use]
pub fn store_command_in(wrapper: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    command.args(wrapper).arg(store_server());
    command
}

/// Returns the `redis-cli` that belongs to the store server.
#[must_use]
pub fn store_cli() -> PathBuf {
    let server = store_server();
    let name = server.file_name().expect("the name of a program");
    let name = name.to_string_lossy().replace("server", "cli");
    server.with_file_name(name)
}
