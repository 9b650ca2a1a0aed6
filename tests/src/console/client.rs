//! A client of the operator console that behaves like a browser: plain HTTP/1.1 with headers, forms
//! and server-sent events.

use std::{net::SocketAddr, time::Duration};

use data_encoding::BASE64;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};

/// Upper bound of the time until a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A user of the console of one replica.
#[derive(Debug, Clone)]
pub struct ConsoleUser {
    addr: SocketAddr,
    /// Headers of every request.
    pub headers: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
pub struct HttpResponse {
    pub status: u16,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl ConsoleUser {
    /// Creates a user without credentials.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            headers: Vec::new(),
        }
    }

    /// Creates a user with a token, sent like browsers do: as the password of HTTP basic
    /// authentication.
    #[must_use]
    pub fn with_token(at: SocketAddr, token: &str) -> Self {
        let pair = BASE64.encode(format!("anybody:{token}").as_bytes());
        Self::new(at).with_header("authorization", &format!("Basic {pair}"))
    }

    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends a `GET` request.
    pub async fn get(&self, path: &str) -> HttpResponse {
        self.request("GET", path, "").await
    }

    /// Sends a form as a browser does from a page of the console.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> HttpResponse {
        let from_ours = self.clone().with_header("sec-fetch-site", "same-origin");
        from_ours.post_raw(path, fields).await
    }

    /// Sends a form without headers that name its origin.
    pub async fn post_raw(&self, path: &str, fields: &[(&str, &str)]) -> HttpResponse {
        let fields = fields.iter();
        let fields: Vec<_> = fields
            .map(|(name, value)| format!("{name}={}", percent_encode(value)))
            .collect();
        let form = "application/x-www-form-urlencoded";
        let sender = self.clone().with_header("content-type", form);
        sender.request("POST", path, &fields.join("&")).await
    }

    /// Sends a request and returns the response.
    pub async fn request(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let mut connection = self.send(method, path, body).await;
        let mut answer = Vec::new();
        let read = timeout(TIMEOUT, connection.read_to_end(&mut answer)).await;
        read.expect("an answer in time").expect("it reads");
        parse_response(&String::from_utf8(answer).expect("UTF-8"))
    }

    /// Subscribes to the server-sent events of a page, or returns the response if its status is not
    /// 200.
    pub async fn subscribe(&self, path: &str) -> Result<ServerSentEvents, HttpResponse> {
        let connection = self.send("GET", path, "").await;
        let mut lines = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = timeout(TIMEOUT, lines.read_line(&mut head)).await;
            assert!(
                read.expect("a head in time").expect("it reads") > 0,
                "{head}"
            );
        }
        let reply = parse_response(&head);
        match reply.status {
            200 => Ok(ServerSentEvents(lines)),
            _ => Err(reply),
        }
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut connection = TcpStream::connect(self.addr).await.expect("it listens");
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        let has_host = self.headers.iter().any(|(name, _)| name == "host");
        if !has_host {
            request += &format!("host: {}\r\n", self.addr);
        }
        for (name, value) in &self.headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += &format!("content-length: {}\r\n\r\n{body}", body.len());
        let sent = connection.write_all(request.as_bytes()).await;
        sent.expect("it reads");
        connection
    }
}

/// Server-sent events of a page.
#[derive(Debug)]
pub struct ServerSentEvents(BufReader<TcpStream>);

impl ServerSentEvents {
    /// Waits for the next event and returns its name, or `None` at the end of the stream.
    pub async fn next_event(&mut self) -> Option<String> {
        let next = timeout(TIMEOUT * 3, self.read());
        next.await.expect("it goes on")
    }

    async fn read(&mut self) -> Option<String> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await.expect("it reads") == 0 {
                return None;
            }
            // Browsers dispatch no event without data. Data follows the name.
            match line.trim_end().split_once(": ") {
                Some(("event", of)) => name = of.to_owned(),
                Some(("data", data)) if !data.is_empty() => return Some(name),
                Some(_) | None => {}
            }
        }
    }
}

impl HttpResponse {
    /// Returns the value of a header, or an empty string if the header is missing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(known, _)| known == name);
        header.map_or("", |(_, value)| value)
    }

    /// Returns the value of a hidden form field as a browser would send it.
    #[must_use]
    pub fn hidden_field(&self, name: &str) -> Option<String> {
        self.text_between(&format!("name=\"{name}\" value=\""), "\"")
    }

    /// Returns the target of the link with this text.
    #[must_use]
    pub fn link_target(&self, text: &str) -> Option<String> {
        let (before, _) = self.body.split_once(&format!(">{text}<"))?;
        let (_, after) = before.rsplit_once("href=\"")?;
        Some(unescape_html(after.split_once('"')?.0))
    }

    /// Returns the texts between each `begin` and the next `end`.
    #[must_use]
    pub fn texts_between(&self, begin: &str, end: &str) -> Vec<String> {
        let parts = self.body.split(begin).skip(1);
        let texts = parts.filter_map(|part| Some(unescape_html(part.split_once(end)?.0)));
        texts.collect()
    }

    fn text_between(&self, begin: &str, end: &str) -> Option<String> {
        self.texts_between(begin, end).into_iter().next()
    }
}

fn parse_response(answer: &str) -> HttpResponse {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let headers = lines.filter_map(|line| line.split_once(": "));
    HttpResponse {
        status: status.and_then(|code| code.parse().ok()).expect("a status"),
        headers: headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

fn percent_encode(text: &str) -> String {
    let bytes = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    bytes.collect()
}

/// Returns the path of a page with query parameters.
#[must_use]
pub fn path_with_query(page: &str, fields: &[(&str, &str)]) -> String {
    let fields = fields.iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| format!("{name}={}", percent_encode(value)))
        .collect();
    format!("{page}?{}", fields.join("&"))
}

/// Returns the text of escaped HTML.
fn unescape_html(html: &str) -> String {
    let marks = [
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#38;", "&"),
    ];
    let text = marks.iter();
    text.fold(html.to_owned(), |text, (mark, plain)| {
        text.replace(mark, plain)
    })
}
