//! An HTTPS server for the key set of a token issuer (JWKS), which returns one response to every
//! request.

use std::{net::SocketAddr, path::PathBuf};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    net::{certificates::Authority, tls_relay::TlsRelay},
    process::temp_dir::TempDir,
};

/// A key set server, which stops when dropped.
#[derive(Debug)]
pub struct JwksServer {
    response: watch::Sender<JwksResponse>,
    relay: TlsRelay,
    dir: TempDir,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Debug, Clone)]
struct JwksResponse {
    status: u16,
    body: String,
    request_count: usize,
}

impl JwksServer {
    /// Starts a server that returns status 503.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let plain = listener.local_addr().expect("bound");
        let authority = Authority::new("sites");
        let certificate = authority.server(&["127.0.0.1"]);
        let dir = TempDir::new("key-site");
        std::fs::write(dir.path().join("ca.pem"), authority.pem()).expect("write a file");
        let (answer, _) = watch::channel(JwksResponse {
            status: 503,
            body: String::new(),
            request_count: 0,
        });
        let serving = tokio::spawn(serve(listener, answer.clone()));
        Self {
            response: answer,
            relay: TlsRelay::start(plain, &certificate, None).await,
            dir,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Sets the response to status 200 with `body`.
    pub fn serve_body(&self, body: String) {
        self.response.send_modify(|answer| {
            answer.status = 200;
            answer.body = body;
        });
    }

    /// Sets the response to status 503.
    pub fn serve_unavailable(&self) {
        self.response.send_modify(|answer| answer.status = 503);
    }

    /// Returns the number of requests so far.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.response.borrow().request_count
    }

    #[must_use]
    pub fn url(&self) -> String {
        let addr: SocketAddr = self.relay.addr();
        format!("https://{addr}/keys")
    }

    /// Returns the file with the certificate of the authority that signed the server's certificate.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }
}

async fn serve(listener: TcpListener, answer: watch::Sender<JwksResponse>) {
    while let Ok((client, _)) = listener.accept().await {
        answer.send_modify(|answer| answer.request_count += 1);
        let output = answer.borrow().clone();
        // The client may have disconnected.
        let _ = reply(client, &output).await;
    }
}

async fn reply(client: TcpStream, answer: &JwksResponse) -> std::io::Result<()> {
    let mut client = BufReader::new(client);
    let mut line = String::new();
    while client.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let JwksResponse { status, body, .. } = answer;
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all((head + body).as_bytes()).await?;
    client.shutdown().await
}
