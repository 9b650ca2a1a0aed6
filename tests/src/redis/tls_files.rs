//! Certificate files of a store and of its brokers.

use std::{fs, path::PathBuf};

use crate::{
    net::certificates::{Authority, SignedCertificate},
    process::temp_dir::TempDir,
};

/// Certificates issued by one authority. Servers require a certificate from every client, including
/// other servers.
#[derive(Debug)]
pub struct StoreTlsFiles {
    dir: TempDir,
}

impl StoreTlsFiles {
    /// Creates the files for servers with these names.
    #[must_use]
    pub fn create(names: &[&str]) -> Self {
        let (all, authority) = (TempDir::new("tls"), Authority::new("the authority"));
        let all = Self { dir: all };
        all.write("ca.pem", &authority.pem());
        all.sign("server", &authority.server(names));
        all.sign("peer", &authority.client("peer"));
        all.sign("broker", &authority.client("broker"));
        all
    }

    /// Returns the options of a server, as on the command line of `redis-server`.
    #[must_use]
    pub fn server_options(&self) -> Vec<String> {
        let options = [
            ("tls-cert-file", "server.pem"),
            ("tls-key-file", "server.key"),
            ("tls-client-cert-file", "peer.pem"),
            ("tls-client-key-file", "peer.key"),
            ("tls-ca-cert-file", "ca.pem"),
        ];
        let files = options.into_iter().flat_map(|(option, file)| {
            let path = self.path(file).display().to_string();
            [format!("--{option}"), path]
        });
        let strict = ["--tls-auth-clients", "yes"].map(str::to_owned);
        files.chain(strict).collect()
    }

    /// Returns the settings of a broker as environment variables.
    #[must_use]
    pub fn broker_settings(&self) -> Vec<(String, String)> {
        let files = [
            ("CA_FILE", "ca.pem"),
            ("CERT_FILE", "broker.pem"),
            ("KEY_FILE", "broker.key"),
        ];
        let files = files.map(|(key, file)| {
            let path = self.path(file).display().to_string();
            (format!("LEASEHOLD__STORE__TLS_{key}"), path)
        });
        let on = ("LEASEHOLD__STORE__TLS".to_owned(), "true".to_owned());
        files.into_iter().chain([on]).collect()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn sign(&self, name: &str, signed: &SignedCertificate) {
        self.write(&format!("{name}.pem"), &signed.pem());
        self.write(&format!("{name}.key"), &signed.key_pem());
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).expect("write a file");
    }
}
