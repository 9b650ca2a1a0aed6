//! Encoders for valid and invalid HTTP/2 frames (RFC 9113).

use prost::Message;

/// First bytes that a client sends.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of a frame header: length, type, flags and stream.
pub const FRAME_HEADER_BYTES: usize = 9;

/// Frame type that carries messages.
pub const DATA: u8 = 0;
/// Frame type that begins a request or response, or ends a response.
pub const HEADERS: u8 = 1;
/// Deprecated frame type, which receivers ignore.
pub const PRIORITY: u8 = 2;
/// Frame type that resets a stream.
pub const RST_STREAM: u8 = 3;
/// Frame type with the parameters of the sender.
pub const SETTINGS: u8 = 4;
/// Frame type that checks whether the peer is alive.
pub const PING: u8 = 6;
/// Frame type that announces the end of the connection.
pub const GOAWAY: u8 = 7;
/// Frame type that extends a flow control window.
pub const WINDOW_UPDATE: u8 = 8;
/// Frame type that continues HEADERS.
pub const CONTINUATION: u8 = 9;
/// Undefined frame type.
pub const UNKNOWN: u8 = 0x55;

/// Flag that marks an acknowledgement of SETTINGS or PING.
pub const ACK: u8 = 1;
/// Flag of the last frame of a stream.
pub const END_STREAM: u8 = 1;
/// Flag of the last frame of a header block.
pub const END_HEADERS: u8 = 4;

/// Setting with the initial flow control window of each stream.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// Error code of a reset that is not an error.
pub const CANCEL: u32 = 8;
/// Error code that reports excessive load by the peer.
pub const ENHANCE_YOUR_CALM: u32 = 11;

#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a payload that fits");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns a SETTINGS frame with pairs of number and value.
#[must_use]
pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |&(number, value): &(u16, u32)| {
        let (number, value) = (number.to_be_bytes(), value.to_be_bytes());
        number.into_iter().chain(value)
    };
    let payload: Vec<_> = settings.iter().flat_map(one).collect();
    frame(SETTINGS, 0, 0, &payload)
}

/// Returns a PING frame.
#[must_use]
pub fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"are you ")
}

/// Returns a RST_STREAM frame.
#[must_use]
pub fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

/// Returns a frame that extends the window of a stream, or of the connection if `stream` is 0.
#[must_use]
pub fn window_update(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

/// Returns a frame that makes `stream` depend on `other`.
#[must_use]
pub fn priority(stream: u32, other: u32) -> Vec<u8> {
    let payload = [other.to_be_bytes().as_slice(), &[9]].concat();
    frame(PRIORITY, 0, stream, &payload)
}

/// Returns a GOAWAY frame without an error.
#[must_use]
pub fn go_away() -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[0; 8])
}

/// Returns the HEADERS frame of a gRPC call.
#[must_use]
pub fn call_headers(stream: u32, path: &str, flags: u8) -> Vec<u8> {
    frame(
        HEADERS,
        flags | END_HEADERS,
        stream,
        &call_header_block(path),
    )
}

/// Returns the HEADERS frame of a gRPC call with a bearer token.
#[must_use]
pub fn call_headers_with_token(stream: u32, path: &str, token: &str, flags: u8) -> Vec<u8> {
    let authorization = header("authorization", &format!("Bearer {token}"));
    let block = [call_header_block(path), authorization].concat();
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

/// Returns the header block of a gRPC call in HPACK, without entries for the dynamic table.
#[must_use]
pub fn call_header_block(path: &str) -> Vec<u8> {
    /// Indexes of the static table: POST, http.
    const INDEXED: [u8; 2] = [0x83, 0x86];
    let mut block = INDEXED.to_vec();
    block.extend(header(":path", path));
    block.extend(header(":authority", "broker"));
    block.extend(header("content-type", "application/grpc"));
    block.extend(header("te", "trailers"));
    block
}

/// Returns a header as a literal without indexing.
#[must_use]
pub fn header(name: &str, value: &str) -> Vec<u8> {
    [&[0], hpack_string(name).as_slice(), &hpack_string(value)].concat()
}

/// Returns a header as a literal with indexing, which the peer adds to its dynamic table.
#[must_use]
pub fn indexed_header(name: &str, value: &str) -> Vec<u8> {
    [&[0x40], hpack_string(name).as_slice(), &hpack_string(value)].concat()
}

/// Returns an HPACK string: the length as an integer with a 7-bit prefix, and the text.
fn hpack_string(text: &str) -> Vec<u8> {
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

/// Returns a gRPC message in one DATA frame.
#[must_use]
pub fn message(stream: u32, message: &impl Message, flags: u8) -> Vec<u8> {
    let message = message.encode_to_vec();
    let payload = [message_prefix(message.len()).as_slice(), &message].concat();
    frame(DATA, flags, stream, &payload)
}

/// Returns the prefix of an uncompressed gRPC message of this length.
#[must_use]
pub fn message_prefix(length: usize) -> [u8; 5] {
    let [a, b, c, d] = u32::try_from(length).expect("four bytes").to_be_bytes();
    [0, a, b, c, d]
}
