//! A web site with one page, returned for every path over HTTP without TLS.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;

const PAGE: &str = "<!doctype html><html lang=\"en\"><title>A page</title><body></body></html>";

/// A web site, which stops when dropped.
#[derive(Debug)]
pub struct WebSite {
    addr: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl WebSite {
    /// Starts a web site on 127.0.0.1.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self {
            addr: listener.local_addr().expect("bound"),
            _serving: AbortOnDropHandle::new(tokio::spawn(serve(listener))),
        }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

async fn serve(listener: TcpListener) {
    while let Ok((connection, _)) = listener.accept().await {
        tokio::spawn(answer(connection));
    }
}

async fn answer(connection: TcpStream) {
    let mut lines = BufReader::new(connection).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.is_empty() {
            break;
        }
    }
    let length = PAGE.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{PAGE}"
    );
    let mut connection = lines.into_inner().into_inner();
    // The browser may have disconnected.
    let _ = connection.write_all(answer.as_bytes()).await;
}
