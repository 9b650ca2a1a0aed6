//! The site of an issuer, where its keys are: HTTP over TLS, one answer to everybody.

use std::{net::SocketAddr, path::PathBuf};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{certificates::Authority, temp_dir::TempDir, tls_relay::TlsRelay};

/// Ends when dropped.
#[derive(Debug)]
pub struct KeySite {
    answer: watch::Sender<Answer>,
    relay: TlsRelay,
    dir: TempDir,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Debug, Clone)]
struct Answer {
    status: u16,
    body: String,
    asked: usize,
}

impl KeySite {
    /// One that has an error for everybody.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let plain = listener.local_addr().expect("bound");
        let authority = Authority::new("sites");
        let certificate = authority.server(&["127.0.0.1"]);
        let dir = TempDir::new("key-site");
        std::fs::write(dir.path().join("ca.pem"), authority.pem()).expect("write a file");
        let (answer, _) = watch::channel(Answer {
            status: 503,
            body: String::new(),
            asked: 0,
        });
        let serving = tokio::spawn(serve(listener, answer.clone()));
        Self {
            answer,
            relay: TlsRelay::start(plain, &certificate, None).await,
            dir,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// What everybody gets from now on.
    pub fn answer(&self, body: String) {
        self.answer.send_modify(|answer| {
            answer.status = 200;
            answer.body = body;
        });
    }

    /// Everybody gets an error from now on.
    pub fn fail(&self) {
        self.answer.send_modify(|answer| answer.status = 503);
    }

    /// How often it was asked.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.answer.borrow().asked
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        let addr: SocketAddr = self.relay.addr();
        format!("https://{addr}/keys")
    }

    /// Who signs its certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }
}

async fn serve(listener: TcpListener, answer: watch::Sender<Answer>) {
    while let Ok((client, _)) = listener.accept().await {
        answer.send_modify(|answer| answer.asked += 1);
        let said = answer.borrow().clone();
        // A client that goes away needs no answer.
        let _ = reply(client, &said).await;
    }
}

async fn reply(client: TcpStream, answer: &Answer) -> std::io::Result<()> {
    let mut client = BufReader::new(client);
    let mut line = String::new();
    while client.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let Answer { status, body, .. } = answer;
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all((head + body).as_bytes()).await?;
    client.shutdown().await
}
