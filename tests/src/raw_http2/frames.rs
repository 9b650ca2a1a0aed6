//! Frames of HTTP/2 as bytes (RFC 9113): right ones and wrong ones.

use prost::Message;

/// What a client begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length, kind, flags and stream.
pub const HEAD: usize = 9;

/// Kinds of frames.
pub const DATA: u8 = 0;
/// The beginning of a call, and the end of an answer.
pub const HEADERS: u8 = 1;
/// Deprecated, and to be ignored.
pub const PRIORITY: u8 = 2;
/// The end of a stream.
pub const RST_STREAM: u8 = 3;
/// What a side wants to be known.
pub const SETTINGS: u8 = 4;
/// A question for life.
pub const PING: u8 = 6;
/// The end of a connection.
pub const GOAWAY: u8 = 7;
/// Leave to send.
pub const WINDOW_UPDATE: u8 = 8;
/// More of HEADERS.
pub const CONTINUATION: u8 = 9;
/// A kind that nobody has defined.
pub const UNKNOWN: u8 = 0x55;

/// The flag of an answer to SETTINGS or PING.
pub const ACK: u8 = 1;
/// The flag of the last frame of a stream.
pub const END_STREAM: u8 = 1;
/// The flag of the last frame of a block of headers.
pub const END_HEADERS: u8 = 4;

/// The setting of the window that each stream begins with.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// The reason of a reset that nobody is to blame for.
pub const CANCEL: u32 = 8;
/// What a peer says to who goes too far.
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// Any frame.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a payload that fits");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Settings: numbers and values.
#[must_use]
pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |&(number, value): &(u16, u32)| {
        let (number, value) = (number.to_be_bytes(), value.to_be_bytes());
        number.into_iter().chain(value)
    };
    let payload: Vec<_> = settings.iter().flat_map(one).collect();
    frame(SETTINGS, 0, 0, &payload)
}

/// A question for life.
#[must_use]
pub fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"are you ")
}

/// The end of a stream.
#[must_use]
pub fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

/// Leave to send so much more; stream 0 is the connection.
#[must_use]
pub fn window_update(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

/// That `stream` depends on `other`.
#[must_use]
pub fn priority(stream: u32, other: u32) -> Vec<u8> {
    let payload = [other.to_be_bytes().as_slice(), &[9]].concat();
    frame(PRIORITY, 0, stream, &payload)
}

/// The end of the connection, without a fault.
#[must_use]
pub fn go_away() -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[0; 8])
}

/// The head of a call of gRPC.
#[must_use]
pub fn call(stream: u32, path: &str, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &call_block(path))
}

/// The head of a call of somebody with this token.
#[must_use]
pub fn call_with(stream: u32, path: &str, token: &str, flags: u8) -> Vec<u8> {
    let shown = header("authorization", &format!("Bearer {token}"));
    let block = [call_block(path), shown].concat();
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

/// The headers of a call of gRPC, as HPACK: nothing of it is remembered.
#[must_use]
pub fn call_block(path: &str) -> Vec<u8> {
    /// Of the static table: POST, http.
    const INDEXED: [u8; 2] = [0x83, 0x86];
    let mut block = INDEXED.to_vec();
    block.extend(header(":path", path));
    block.extend(header(":authority", "broker"));
    block.extend(header("content-type", "application/grpc"));
    block.extend(header("te", "trailers"));
    block
}

/// One header, as a literal without indexing.
#[must_use]
pub fn header(name: &str, value: &str) -> Vec<u8> {
    [&[0], text(name).as_slice(), &text(value)].concat()
}

/// One header, as a literal that the peer has to remember.
#[must_use]
pub fn remembered(name: &str, value: &str) -> Vec<u8> {
    [&[0x40], text(name).as_slice(), &text(value)].concat()
}

/// A text of HPACK: its length in 7 bits and more, and itself.
fn text(text: &str) -> Vec<u8> {
    const PREFIX: usize = 0x7f;
    let mut bytes = Vec::new();
    let byte = |value: usize| u8::try_from(value).expect("seven bits");
    if text.len() < PREFIX {
        bytes.push(byte(text.len()));
    } else {
        bytes.push(byte(PREFIX));
        let mut rest = text.len() - PREFIX;
        while rest > PREFIX {
            bytes.push(byte(rest & PREFIX) | 0x80);
            rest >>= 7;
        }
        bytes.push(byte(rest));
    }
    bytes.extend(text.as_bytes());
    bytes
}

/// A message of gRPC, in one frame.
#[must_use]
pub fn message(stream: u32, message: &impl Message, flags: u8) -> Vec<u8> {
    let message = message.encode_to_vec();
    let payload = [announced(message.len()).as_slice(), &message].concat();
    frame(DATA, flags, stream, &payload)
}

/// What stands before a message of that length: not compressed.
#[must_use]
pub fn announced(length: usize) -> [u8; 5] {
    let [a, b, c, d] = u32::try_from(length).expect("four bytes").to_be_bytes();
    [0, a, b, c, d]
}
