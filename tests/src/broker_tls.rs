//! Brokers that speak TLS: their certificates in files, and those who connect.

use std::{collections::BTreeSet, fs, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use leasehold::{Certificate, ClientTlsConfig, Identity};
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

use crate::{
    broker_process::BrokerOptions,
    callers::replace,
    certificates::{Authority, Signed},
    temp_dir::TempDir,
};

/// Where brokers under test listen.
pub const HOST: &str = "127.0.0.1";

/// The files of a broker's certificate.
#[derive(Debug)]
pub struct BrokerTls {
    dir: TempDir,
    /// Who signs it.
    pub authority: Authority,
    /// Who signs those of clients.
    pub clients: Option<Authority>,
}

impl BrokerTls {
    /// A broker of 127.0.0.1, whose clients need certificates or not.
    #[must_use]
    pub fn create(mutual: bool) -> Self {
        let tls = Self {
            dir: TempDir::new("broker-tls"),
            authority: Authority::new("brokers"),
            clients: mutual.then(|| Authority::new("clients")),
        };
        tls.renew(&tls.authority.server(&[HOST]));
        if let Some(clients) = &tls.clients {
            tls.write("clients.pem", &clients.pem());
        }
        tls
    }

    /// On this store.
    #[must_use]
    pub fn options(&self, store: String) -> BrokerOptions {
        let mut options = BrokerOptions::on(store);
        options.env.extend(self.settings(self.clients.is_some()));
        options
    }

    /// As environment variables, of a broker whose clients need certificates or not.
    #[must_use]
    pub fn settings(&self, mutual: bool) -> Vec<(String, String)> {
        let files = [("CERT", "broker.pem"), ("KEY", "broker.key")].into_iter();
        let client_ca = mutual.then_some(("CLIENT_CA", "clients.pem"));
        let setting = |(key, file)| {
            let path = self.path(file).display().to_string();
            (format!("LEASEHOLD__TLS__{key}_FILE"), path)
        };
        files.chain(client_ca).map(setting).collect()
    }

    /// Puts another certificate in the place of the broker's.
    pub fn renew(&self, signed: &Signed) {
        self.write("broker.pem", &signed.pem());
        self.write("broker.key", &signed.key_pem());
    }

    /// Writes one of the files.
    pub fn write(&self, file: &str, text: &str) {
        replace(&self.path(file), text);
    }

    /// How a client of the SDK trusts the broker, and shows its own certificate if it has one.
    #[must_use]
    pub fn trust(&self, client: Option<&Signed>) -> ClientTlsConfig {
        let trust = ClientTlsConfig::new();
        let trust = trust.ca_certificate(Certificate::from_pem(self.authority.pem()));
        match client {
            None => trust,
            Some(signed) => trust.identity(Identity::from_pem(signed.pem(), signed.key_pem())),
        }
    }

    /// Where a file is.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }
}

/// A handshake.
///
/// # Errors
/// Why there is none, as this side sees it.
pub async fn handshake(
    addr: SocketAddr,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(addr).await?;
    let name = ServerName::try_from(HOST).expect("an address");
    TlsConnector::from(config).connect(name, tcp).await
}

/// The client's ports of the connections to this address that are open.
#[must_use]
pub fn connections(addr: SocketAddr) -> BTreeSet<u16> {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
    let port = |address: &str| {
        let (_, port) = address.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    let open = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (near, far, state) = (words.next()?, words.next()?, words.next()?);
        // The broker's side: that of clients may be of IPv6.
        let is_it = port(near) == Some(addr.port()) && state == ESTABLISHED;
        is_it.then(|| port(far)).flatten()
    });
    open.collect()
}

/// Whether the other side closes a connection within `limit`, whatever it says before.
pub async fn is_closed(mut tcp: impl tokio::io::AsyncRead + Unpin, limit: Duration) -> bool {
    let mut rest = Vec::new();
    let closed = timeout(limit, tcp.read_to_end(&mut rest)).await;
    closed.is_ok()
}
