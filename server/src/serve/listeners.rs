//! The sockets of a broker, and the lines that tell where they are.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
};

use tokio::net::TcpListener;

use super::RunError;
use crate::config::Config;

/// The sockets of a broker, already bound.
pub struct Listeners {
    /// For the API.
    pub api: TcpListener,
    /// For health and the admin service.
    pub admin: TcpListener,
}

impl Listeners {
    /// Binds the configured addresses.
    ///
    /// # Errors
    /// Names the address that cannot be bound.
    pub async fn bind(config: &Config) -> Result<Self, RunError> {
        Ok(Self {
            api: bind(config.listen).await?,
            admin: bind(config.admin_listen).await?,
        })
    }

    /// Prints where the broker listens to stdout, and in `dev` a command to try.
    ///
    /// # Errors
    /// If stdout is closed.
    pub fn announce(&self, dev: bool) -> io::Result<()> {
        let api = self.api.local_addr()?;
        let mut out = io::stdout().lock();
        writeln!(out, "listening on {api}")?;
        writeln!(out, "admin listening on {}", self.admin.local_addr()?)?;
        if dev {
            let request = r#"{"target":{"name":"demo"},"owner":{"id":"me"},"wait_timeout":"5s"}"#;
            let method = "leasehold.v1.LockService/Acquire";
            writeln!(out, "grpcurl -plaintext -d '{request}' {api} {method}")?;
        }
        out.flush()
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| RunError::Listen {
            address,
            why: why(&source),
        })
}

fn why(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::AddrInUse {
        return "address already in use; stop what listens there, or choose another (port 0 picks \
                a free one)"
            .to_owned();
    }
    error.to_string()
}
