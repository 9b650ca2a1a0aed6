//! The operators' page as a browser asks for it: plain HTTP/1.1, headers and all, forms and what is told on and on.

use std::{net::SocketAddr, time::Duration};

use data_encoding::BASE64;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};

/// An answer comes sooner.
const LIMIT: Duration = Duration::from_secs(10);

/// Somebody who looks at the page of one replica.
#[derive(Debug, Clone)]
pub struct Looker {
    at: SocketAddr,
    /// What is sent with every request.
    pub headers: Vec<(String, String)>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers, the names in lower case.
    pub headers: Vec<(String, String)>,
    /// What is in it.
    pub body: String,
}

impl Looker {
    /// Somebody who shows nothing.
    #[must_use]
    pub fn new(at: SocketAddr) -> Self {
        Self {
            at,
            headers: Vec::new(),
        }
    }

    /// Somebody who shows a token as browsers do.
    #[must_use]
    pub fn with_token(at: SocketAddr, token: &str) -> Self {
        let pair = BASE64.encode(format!("anybody:{token}").as_bytes());
        Self::new(at).with("authorization", &format!("Basic {pair}"))
    }

    /// The same with one more header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// What GET answers.
    pub async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "").await
    }

    /// Sends a form, as a page of ours does in a browser.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let from_ours = self.clone().with("sec-fetch-site", "same-origin");
        from_ours.post_raw(path, fields).await
    }

    /// Sends a form, and nothing of where it is from.
    pub async fn post_raw(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let fields = fields.iter();
        let fields: Vec<_> = fields
            .map(|(name, value)| format!("{name}={}", percent(value)))
            .collect();
        let form = "application/x-www-form-urlencoded";
        let sender = self.clone().with("content-type", form);
        sender.ask("POST", path, &fields.join("&")).await
    }

    /// What any request answers.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> Reply {
        let mut connection = self.send(method, path, body).await;
        let mut answer = Vec::new();
        let read = timeout(LIMIT, connection.read_to_end(&mut answer)).await;
        read.expect("an answer in time").expect("it reads");
        parse(&String::from_utf8(answer).expect("UTF-8"))
    }

    /// The events of a page: its answer's head, and then what is told.
    pub async fn listen(&self, path: &str) -> Result<Events, Reply> {
        let connection = self.send("GET", path, "").await;
        let mut lines = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = timeout(LIMIT, lines.read_line(&mut head)).await;
            assert!(
                read.expect("a head in time").expect("it reads") > 0,
                "{head}"
            );
        }
        let reply = parse(&head);
        match reply.status {
            200 => Ok(Events(lines)),
            _ => Err(reply),
        }
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut connection = TcpStream::connect(self.at).await.expect("it listens");
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        let has_host = self.headers.iter().any(|(name, _)| name == "host");
        if !has_host {
            request += &format!("host: {}\r\n", self.at);
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

/// What a page is told while it is shown.
#[derive(Debug)]
pub struct Events(BufReader<TcpStream>);

impl Events {
    /// The name of the next one; `None` at the end.
    pub async fn next(&mut self) -> Option<String> {
        let next = timeout(LIMIT * 3, self.read());
        next.await.expect("it goes on")
    }

    async fn read(&mut self) -> Option<String> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await.expect("it reads") == 0 {
                return None;
            }
            // Browsers pass on no event without data, which follows the name.
            match line.trim_end().split_once(": ") {
                Some(("event", of)) => name = of.to_owned(),
                Some(("data", data)) if !data.is_empty() => return Some(name),
                Some(_) | None => {}
            }
        }
    }
}

impl Reply {
    /// The value of a header; empty where there is none.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(known, _)| known == name);
        header.map_or("", |(_, value)| value)
    }

    /// What a hidden field of the form has, as a browser would send it.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<String> {
        self.between(&format!("name=\"{name}\" value=\""), "\"")
    }

    /// Where a link with this text leads.
    #[must_use]
    pub fn link(&self, text: &str) -> Option<String> {
        let (before, _) = self.body.split_once(&format!(">{text}<"))?;
        let (_, after) = before.rsplit_once("href=\"")?;
        Some(unescaped(after.split_once('"')?.0))
    }

    /// The texts of the elements that begin so.
    #[must_use]
    pub fn texts(&self, begin: &str, end: &str) -> Vec<String> {
        let parts = self.body.split(begin).skip(1);
        let texts = parts.filter_map(|part| Some(unescaped(part.split_once(end)?.0)));
        texts.collect()
    }

    fn between(&self, begin: &str, end: &str) -> Option<String> {
        self.texts(begin, end).into_iter().next()
    }
}

fn parse(answer: &str) -> Reply {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let headers = lines.filter_map(|line| line.split_once(": "));
    Reply {
        status: status.and_then(|code| code.parse().ok()).expect("a status"),
        headers: headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

fn percent(text: &str) -> String {
    let bytes = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    bytes.collect()
}

/// The path of a page about that.
#[must_use]
pub fn path(page: &str, fields: &[(&str, &str)]) -> String {
    let fields = fields.iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| format!("{name}={}", percent(value)))
        .collect();
    format!("{page}?{}", fields.join("&"))
}

/// Text as it was before it became HTML.
fn unescaped(html: &str) -> String {
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
