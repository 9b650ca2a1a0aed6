//! A raw Redis connection for single commands.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;

use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream, Error,
    ErrorKind, Result,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::net::certificates::{Authority, SignedCertificate, client_config};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Simple string (`+`).
    Simple(String),
    /// Error (`-`).
    Error(String),
    /// Integer (`:`).
    Integer(i64),
    /// Bulk string (`$`). A null is the empty text.
    Text(String),
    /// Array (`*`).
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the text of a simple or bulk string.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Simple(text) | Self::Text(text) => text,
            Self::Error(_) | Self::Integer(_) | Self::Array(_) => panic!("no text: {self:?}"),
        }
    }

    /// Returns the number of an integer reply.
    #[must_use]
    pub fn integer(&self) -> i64 {
        let Self::Integer(number) = self else {
            panic!("no integer: {self:?}")
        };
        *number
    }

    /// Returns the elements of an array.
    #[must_use]
    pub fn array(&self) -> &[Reply] {
        let Self::Array(parts) = self else {
            panic!("no array: {self:?}")
        };
        parts
    }
}

/// A connection, which executes one command at a time.
#[derive(Debug)]
pub struct RedisConnection(BufStream<Box<dyn Wire>>);

/// A TCP or TLS connection.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send + Sync + Debug {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync + Debug> Wire for T {}

impl RedisConnection {
    pub async fn open(addr: SocketAddr) -> Result<Self> {
        let tcp = TcpStream::connect(addr).await?;
        Ok(Self(BufStream::new(Box::new(tcp))))
    }

    /// Connects by TLS to a server with a certificate of `authority`, optionally with a client
    /// certificate. A server that rejects the client certificate reports the error on the first
    /// command.
    pub async fn open_tls(
        addr: SocketAddr,
        authority: &Authority,
        client: Option<&SignedCertificate>,
    ) -> Result<Self> {
        let connector = TlsConnector::from(client_config(authority, client));
        let tcp = TcpStream::connect(addr).await?;
        let tls = connector.connect(ServerName::from(addr.ip()), tcp).await?;
        Ok(Self(BufStream::new(Box::new(tls))))
    }

    /// Sends a command and reads its reply.
    pub async fn command(&mut self, words: &[&str]) -> Result<Reply> {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.write_all(text.as_bytes()).await?;
        self.0.flush().await?;
        self.reply().await
    }

    /// Waits for the next message of a subscribed channel.
    pub async fn next_message(&mut self) -> Result<Reply> {
        self.reply().await
    }

    /// Sends a command, asserts that Redis rejects it, and returns the error message.
    pub async fn expect_error(&mut self, words: &[&str]) -> String {
        match self.command(words).await {
            Ok(Reply::Error(error)) => error,
            other => panic!("{words:?} was not refused: {other:?}"),
        }
    }

    /// Sends a command, asserts that it succeeds, and returns the reply.
    pub async fn must(&mut self, words: &[&str]) -> Reply {
        match self.command(words).await {
            Ok(Reply::Error(error)) => panic!("{words:?}: {error}"),
            Ok(reply) => reply,
            Err(error) => panic!("{words:?}: {error}"),
        }
    }

    /// Returns a field of `INFO`.
    pub async fn info(&mut self, section: &str, field: &str) -> Option<String> {
        let text = self.must(&["INFO", section]).await.text().to_owned();
        text.lines()
            .find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.to_owned()))
    }

    /// Returns the fields of a hash, sorted by name. The result is empty if the key does not exist.
    pub async fn hash_fields(&mut self, key: &str) -> BTreeMap<String, String> {
        let reply = self.must(&["HGETALL", key]).await;
        let pairs = reply.array().chunks(2);
        pairs
            .map(|pair| (pair[0].text().to_owned(), pair[1].text().to_owned()))
            .collect()
    }

    /// Returns true if the record of a lock has a set limit. Such a record has no TTL.
    pub async fn has_set_limit(&mut self, key: &str) -> bool {
        let record = self.hash_fields(key).await;
        let set_limit = record.get("u").and_then(|sums| sums.split('|').nth(7));
        set_limit.is_some_and(|limit| limit != "0")
    }

    /// Returns every key with this prefix and its PTTL.
    pub async fn keys_with_pttl(&mut self, prefix: &str) -> Vec<(String, i64)> {
        let mut keys = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let page = self
                .must(&["SCAN", &cursor, "MATCH", &format!("{prefix}*")])
                .await;
            let [next, found] = page.array() else {
                panic!("SCAN answered {page:?}")
            };
            for key in found.array() {
                let pttl = self.must(&["PTTL", key.text()]).await.integer();
                keys.push((key.text().to_owned(), pttl));
            }
            next.text().clone_into(&mut cursor);
            if cursor == "0" {
                return keys;
            }
        }
    }

    async fn reply(&mut self) -> Result<Reply> {
        let line = self.line().await?;
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().map_err(|_| malformed());
        match kind {
            "+" => Ok(Reply::Simple(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Integer(number()?)),
            "$" => Ok(Reply::Text(self.bulk(number()?).await?)),
            "*" => {
                let mut parts = Vec::new();
                for _ in 0..number()? {
                    parts.push(Box::pin(self.reply()).await?);
                }
                Ok(Reply::Array(parts))
            }
            _ => Err(malformed()),
        }
    }

    async fn bulk(&mut self, length: i64) -> Result<String> {
        let Ok(length) = usize::try_from(length) else {
            return Ok(String::new());
        };
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).await?;
        bytes.truncate(length);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        if line.is_empty() {
            Err(malformed())
        } else {
            Ok(line.trim_end().to_owned())
        }
    }
}

fn malformed() -> Error {
    Error::from(ErrorKind::InvalidData)
}
