//! Brokers with TLS: files with their certificates, and clients that connect by TLS.

use std::{collections::BTreeSet, fs, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use leasehold::{Certificate, ClientTlsConfig, Identity};
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

use crate::{
    access::files_and_callers::replace_file,
    broker::process::BrokerOptions,
    net::certificates::{Authority, SignedCertificate},
    process::temp_dir::TempDir,
};

/// Host of the brokers under test.
pub const HOST: &str = "127.0.0.1";

/// The certificate files of a broker.
#[derive(Debug)]
pub struct BrokerTls {
    dir: TempDir,
    /// The authority that signs the broker's certificate.
    pub authority: Authority,
    /// The authority that signs client certificates.
    pub client_authority: Option<Authority>,
}

impl BrokerTls {
    /// Creates the files of a broker at 127.0.0.1. With `mutual`, clients need certificates.
    #[must_use]
    pub fn create(mutual: bool) -> Self {
        let tls = Self {
            dir: TempDir::new("broker-tls"),
            authority: Authority::new("brokers"),
            client_authority: mutual.then(|| Authority::new("clients")),
        };
        tls.replace_certificate(&tls.authority.server(&[HOST]));
        if let Some(clients) = &tls.client_authority {
            tls.write("clients.pem", &clients.pem());
        }
        tls
    }

    /// Returns the options of a broker on this store.
    #[must_use]
    pub fn options(&self, store: String) -> BrokerOptions {
        let mut options = BrokerOptions::for_store(store);
        options
            .env
            .extend(self.settings(self.client_authority.is_some()));
        options
    }

    /// Returns the settings as environment variables. With `mutual`, clients need certificates.
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

    /// Replaces the broker's certificate.
    pub fn replace_certificate(&self, signed: &SignedCertificate) {
        self.write("broker.pem", &signed.pem());
        self.write("broker.key", &signed.key_pem());
    }

    pub fn write(&self, file: &str, text: &str) {
        replace_file(&self.path(file), text);
    }

    /// Returns the TLS configuration of an SDK client that trusts the broker, with a client
    /// certificate if there is one.
    #[must_use]
    pub fn sdk_client_config(&self, client: Option<&SignedCertificate>) -> ClientTlsConfig {
        let trust = ClientTlsConfig::new();
        let trust = trust.ca_certificate(Certificate::from_pem(self.authority.pem()));
        match client {
            None => trust,
            Some(signed) => trust.identity(Identity::from_pem(signed.pem(), signed.key_pem())),
        }
    }

    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }
}

/// Connects and performs a TLS handshake.
///
/// # Errors
/// The failure of the handshake on the client's side.
pub async fn handshake(
    addr: SocketAddr,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(addr).await?;
    let name = ServerName::try_from(HOST).expect("an address");
    TlsConnector::from(config).connect(name, tcp).await
}

/// Returns the client ports of the open connections to this address.
#[must_use]
pub fn open_client_ports(addr: SocketAddr) -> BTreeSet<u16> {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
    let port = |address: &str| {
        let (_, port) = address.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    let open = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (near, far, state) = (words.next()?, words.next()?, words.next()?);
        // The broker's side, because the client's side may be IPv6.
        let is_it = port(near) == Some(addr.port()) && state == ESTABLISHED;
        is_it.then(|| port(far)).flatten()
    });
    open.collect()
}

/// Returns true if the other side closes a connection within `limit`, whatever it sends before.
pub async fn closes_within(mut tcp: impl tokio::io::AsyncRead + Unpin, limit: Duration) -> bool {
    let mut rest = Vec::new();
    let closed = timeout(limit, tcp.read_to_end(&mut rest)).await;
    closed.is_ok()
}
