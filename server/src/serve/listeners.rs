//! Sockets of a broker, and the output that announces their addresses.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
};

use tokio::net::TcpListener;

use super::{RunError, banner::banner};
use crate::config::Config;

/// The sockets of a broker, already bound.
pub struct Listeners {
    /// Listener of the API.
    pub api: TcpListener,
    /// Listener of health checks, the admin service, metrics and the operator console.
    pub admin: TcpListener,
}

impl Listeners {
    /// Binds the configured addresses.
    ///
    /// # Errors
    /// If an address cannot be bound; the error names it.
    pub async fn bind(config: &Config) -> Result<Self, RunError> {
        Ok(Self {
            api: bind(config.listen).await?,
            admin: bind(config.admin_listen).await?,
        })
    }

    /// Prints the addresses to stdout, which programs read, and in `dev` a banner for people.
    ///
    /// # Errors
    /// If stdout is closed.
    pub fn announce(&self, config: &Config) -> io::Result<()> {
        let (api, admin) = (self.api.local_addr()?, self.admin.local_addr()?);
        let mut out = io::stdout().lock();
        writeln!(out, "listening on {api}")?;
        writeln!(out, "admin listening on {admin}")?;
        if config.dev {
            writeln!(out, "{}", banner(config, api, admin))?;
        }
        out.flush()
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| RunError::Listen {
            address,
            reason: bind_failure(&source),
        })
}

fn bind_failure(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::AddrInUse {
        return "address already in use; stop the process that listens there, or choose another \
                address (port 0 selects a free port)"
            .to_owned();
    }
    error.to_string()
}
