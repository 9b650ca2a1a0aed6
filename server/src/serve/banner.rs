//! Start-up banner of `dev`: the addresses, and a command to try.

use std::{
    env,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use crate::config::{Config, StoreSettings};

/// Endpoint that `leasehold` uses without `--endpoint`.
const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:7070";

/// Returns the banner of a broker that listens on `api` and `admin`.
pub(super) fn banner(config: &Config, api: SocketAddr, admin: SocketAddr) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let store = match &config.store {
        StoreSettings::Memory { .. } => "in memory: locks do not outlive this process.".to_owned(),
        StoreSettings::Redis(_) | StoreSettings::Redlock { .. } => {
            format!("store: {}.", config.store.description())
        }
    };
    let has_tls = config.access.tls.is_some();
    let (api, console) = (url(api, has_tls), url(admin, has_tls));
    let command = command(&command_line_tool(), &api);
    format!(
        "\nLeasehold {version}, {store}\n  \
           API     {api}\n  \
           Console {console}/\n\
         Try it in a second terminal (run it twice: the second waits in the queue):\n  \
           {command}"
    )
}

/// Returns the URL of `address` for clients on this machine.
fn url(address: SocketAddr, has_tls: bool) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    let scheme = if has_tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

fn command(tool: &str, endpoint: &str) -> String {
    if endpoint == DEFAULT_ENDPOINT {
        return format!("{tool} run demo -- sleep 10");
    }
    format!("{tool} run --endpoint {endpoint} demo -- sleep 10")
}

/// Returns the command that runs `leasehold` from the working directory: the program beside this
/// one if it exists, otherwise the one on the `PATH`.
fn command_line_tool() -> String {
    let beside = env::current_exe().map(|server| server.with_file_name("leasehold"));
    match (beside, env::current_dir()) {
        (Ok(tool), Ok(folder)) if tool.is_file() => shell_word(&relative(&tool, &folder)),
        _ => "leasehold".to_owned(),
    }
}

/// Returns `path` relative to `folder` if it is below it, otherwise `path` unchanged.
fn relative(path: &Path, folder: &Path) -> PathBuf {
    match path.strip_prefix(folder) {
        // Without a slash, a shell would search the PATH.
        Ok(below) if below.components().count() == 1 => Path::new(".").join(below),
        Ok(below) => below.to_owned(),
        Err(_) => path.to_owned(),
    }
}

fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_only_an_endpoint_that_is_not_the_default() {
        let at = |address: &str| {
            let address = address.parse().expect("an address");
            command("leasehold", &url(address, false))
        };
        assert_eq!(at("127.0.0.1:7070"), "leasehold run demo -- sleep 10");
        assert_eq!(at("0.0.0.0:7070"), "leasehold run demo -- sleep 10");
        let expected = "leasehold run --endpoint http://[::1]:7170 demo -- sleep 10";
        assert_eq!(at("[::]:7170"), expected);
        let address = SocketAddr::from(([127, 0, 0, 1], 7070));
        assert_eq!(url(address, true), "https://127.0.0.1:7070");
    }

    #[test]
    fn a_shell_finds_the_tool_from_the_working_directory() {
        let word = |path, folder| shell_word(&relative(Path::new(path), Path::new(folder)));
        assert_eq!(word("/a/target/leasehold", "/a"), "target/leasehold");
        assert_eq!(word("/a/leasehold", "/a"), "./leasehold");
        assert_eq!(word("/b/leasehold", "/a"), "/b/leasehold");
        assert_eq!(word("/it's b/leasehold", "/a"), r"'/it'\''s b/leasehold'");
    }
}
