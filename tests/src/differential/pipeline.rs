//! A Redis connection that sends many commands at once and then reads all replies.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use fred::types::Value;

/// A connection with a buffer of unsent commands.
pub struct Pipeline {
    stream: BufReader<TcpStream>,
    unsent: Vec<u8>,
    expected: usize,
}

impl Pipeline {
    pub fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).expect("connect to the tests' Redis");
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        Self {
            stream: BufReader::new(stream),
            unsent: Vec::new(),
            expected: 0,
        }
    }

    pub fn push<W: AsRef<[u8]>>(&mut self, words: impl ExactSizeIterator<Item = W>) {
        write!(self.unsent, "*{}\r\n", words.len()).expect("memory is writable");
        for word in words {
            let word = word.as_ref();
            write!(self.unsent, "${}\r\n", word.len()).expect("memory is writable");
            self.unsent.extend_from_slice(word);
            self.unsent.extend_from_slice(b"\r\n");
        }
        self.expected += 1;
    }

    /// Sends the added commands and returns their replies.
    pub fn replies(&mut self) -> Vec<Value> {
        let sent = self.stream.get_mut().write_all(&self.unsent);
        sent.expect("send to the tests' Redis");
        self.unsent.clear();
        let expected = std::mem::take(&mut self.expected);
        (0..expected).map(|_| self.reply()).collect()
    }

    /// Sends one command and returns its reply.
    pub fn command(&mut self, words: &[&str]) -> Value {
        self.push(words.iter());
        self.replies().remove(0)
    }

    fn reply(&mut self) -> Value {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        assert!(
            read.expect("read from the tests' Redis") > 0,
            "Redis hung up"
        );
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            // The scripts return arrays. A simple string is an error or OK.
            "+" | "-" => Value::from(rest),
            ":" => Value::from(number(rest)),
            "$" => self.bulk(number(rest)),
            "*" => Value::Array((0..number(rest)).map(|_| self.reply()).collect()),
            _ => panic!("Redis answered {line}"),
        }
    }

    fn bulk(&mut self, len: i64) -> Value {
        let Ok(len) = usize::try_from(len) else {
            return Value::Null;
        };
        let mut bytes = vec![0; len + 2];
        let read = self.stream.read_exact(&mut bytes);
        read.expect("read from the tests' Redis");
        bytes.truncate(len);
        Value::from(String::from_utf8(bytes).expect("the scripts answer in UTF-8"))
    }
}

fn number(text: &str) -> i64 {
    text.parse().expect("Redis sends a number here")
}
