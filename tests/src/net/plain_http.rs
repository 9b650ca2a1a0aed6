//! A client for plain HTTP/1.1, which sends one request per connection, like a probe.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Sends a request and returns the status and body of the response.
pub async fn send_request(addr: SocketAddr, method: &str, path: &str) -> io::Result<(u16, String)> {
    send(addr, (method, path), &[], "").await
}

/// Sends a `POST` request with these headers and returns the status and body of the response.
pub async fn post(
    addr: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let answer = send(addr, ("POST", path), headers, body).await;
    answer.expect("an answer")
}

async fn send(
    addr: SocketAddr,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<(u16, String)> {
    let mut connection = TcpStream::connect(addr).await?;
    let headers = headers.iter();
    let headers: String = headers
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    );
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let (Some(status), Some((_, body))) = (status, answer.split_once("\r\n\r\n")) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    Ok((status, body.to_owned()))
}

/// Sends a `GET` request and returns the status and body of the response.
pub async fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    send_request(addr, "GET", path).await.expect("an answer")
}
