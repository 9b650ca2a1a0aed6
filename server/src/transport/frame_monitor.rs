//! HTTP/2 flood detection: inspects the frames of a connection, and detects the client's protocol.

use std::{collections::HashSet, io, time::Duration};

use tokio::time::Instant;

use super::backlog::{Received, memory_of_data};

/// Size of a frame header: length, type, flags and stream (RFC 9113, section 4.1).
const HEADER_BYTES: usize = 9;
/// First bytes that an HTTP/2 client sends (section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
/// Reserved bit of a stream id, which is ignored.
const RESERVED: u32 = 1 << 31;
/// Size of the prefix of each gRPC message. Clients do not send smaller DATA frames.
const MESSAGE_PREFIX_BYTES: usize = 5;
/// Number of idle frames that a client may send within [`IDLE_WINDOW`]. An idle frame neither
/// begins a call nor carries data. Neither tonic nor h2 limits such frames.
const IDLE_FRAMES_MAX: u32 = 100;
const IDLE_WINDOW: Duration = Duration::from_secs(10);
/// Additional idle frames for each frame of a call or a response. gRPC clients open flow-control
/// windows for both, measure the round trip when they receive responses, and reset cancelled calls.
const IDLE_FRAMES_PER_MESSAGE: u32 = 4;
/// Maximum number of idle frames that a client can save up.
const IDLE_FRAMES_SAVED_MAX: u32 = 10_000;

/// Protocols allowed on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedProtocol {
    Http2,
    /// HTTP/2 or HTTP/1.1.
    Either,
}

/// Frame monitor of a connection.
#[derive(Debug)]
pub(super) struct FrameMonitor {
    protocol: DetectedProtocol,
    has_started: bool,
    read: FrameHeaderReader,
    written: FrameHeaderReader,
    /// Number of idle frames that the client may still send.
    idle_frames_left: u32,
    window_start: Instant,
    /// Number of PING frames that the client has not acknowledged; `settings` counts SETTINGS
    /// frames.
    unacknowledged_pings: u32,
    unacknowledged_settings: u32,
    /// Data received since the last [`take_received`](Self::take_received).
    received: Received,
    /// Calls in progress, or `None` once they are no longer counted.
    calls: Option<Calls>,
}

/// Streams of calls whose response has not ended.
#[derive(Debug, Default)]
struct Calls {
    open: HashSet<u32>,
    /// Highest stream id so far: HEADERS on a lower one are trailers.
    newest: u32,
}

#[derive(Debug)]
enum DetectedProtocol {
    Http2,
    Http1,
    /// Not determined yet; this number of bytes matches the HTTP/2 preface.
    Unknown(usize),
}

/// Incremental reader of frame headers in a byte stream.
#[derive(Debug)]
struct FrameHeaderReader {
    /// Number of following bytes that belong to no header.
    skip: usize,
    head: [u8; HEADER_BYTES],
    len: usize,
}

/// Header of a frame.
struct FrameHeader {
    kind: u8,
    flags: u8,
    length: usize,
    stream: u32,
}

impl FrameMonitor {
    pub(super) fn new(allowed: AllowedProtocol) -> Self {
        Self {
            protocol: match allowed {
                AllowedProtocol::Http2 => DetectedProtocol::Http2,
                AllowedProtocol::Either => DetectedProtocol::Unknown(0),
            },
            has_started: false,
            read: FrameHeaderReader::skipping(PREFACE.len()),
            written: FrameHeaderReader::skipping(0),
            idle_frames_left: IDLE_FRAMES_MAX,
            window_start: Instant::now(),
            unacknowledged_pings: 0,
            unacknowledged_settings: 0,
            received: Received::default(),
            calls: Some(Calls::default()),
        }
    }

    /// Returns the data received since the last call of this function.
    pub(super) fn take_received(&mut self) -> Received {
        std::mem::take(&mut self.received)
    }

    /// Returns the number of calls in progress, or `None` if they are no longer counted.
    pub(super) fn calls(&self) -> Option<usize> {
        self.calls.as_ref().map(|calls| calls.open.len())
    }

    pub(super) fn stop_counting_calls(&mut self) {
        self.calls = None;
    }

    /// Returns true once the client has sent an HTTP/2 frame, or anything that is not HTTP/2.
    pub(super) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Inspects bytes that the client sent.
    ///
    /// # Errors
    /// If the client floods the connection.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.detect_protocol(bytes);
        if matches!(self.protocol, DetectedProtocol::Http1) {
            return Ok(());
        }
        while let Some(frame) = self.read.next(&mut bytes) {
            self.has_started = true;
            if let Some(calls) = &mut self.calls {
                calls.read(&frame);
            }
            let is_ack = frame.flags & ACK != 0;
            let is_last = frame.flags & END_STREAM != 0;
            if frame.kind == DATA {
                self.received.bytes += memory_of_data(frame.length);
            }
            match frame.kind {
                HEADERS => {
                    self.received.header_count += 1;
                    self.add_allowance();
                }
                DATA if frame.length >= MESSAGE_PREFIX_BYTES || is_last => {}
                // h2 limits these.
                CONTINUATION => {}
                PING if is_ack && self.unacknowledged_pings > 0 => self.unacknowledged_pings -= 1,
                SETTINGS if is_ack && self.unacknowledged_settings > 0 => {
                    self.unacknowledged_settings -= 1
                }
                _ => self.count_idle_frame()?,
            }
        }
        Ok(())
    }

    /// Inspects bytes that are sent to the client.
    pub(super) fn written(&mut self, mut bytes: &[u8]) {
        if matches!(self.protocol, DetectedProtocol::Http1) {
            return;
        }
        while let Some(frame) = self.written.next(&mut bytes) {
            if let Some(calls) = &mut self.calls {
                calls.written(&frame);
            }
            let is_ack = frame.flags & ACK != 0;
            match frame.kind {
                DATA | HEADERS => self.add_allowance(),
                PING if !is_ack => self.unacknowledged_pings += 1,
                SETTINGS if !is_ack => self.unacknowledged_settings += 1,
                _ => {}
            }
        }
    }

    /// Returns true if the connection uses HTTP/2 and no frame of the server is partly sent, so
    /// that another frame can be inserted.
    pub(super) fn is_between_frames(&self) -> bool {
        matches!(self.protocol, DetectedProtocol::Http2) && self.written.is_between_frames()
    }

    /// Detects the client's protocol from the HTTP/2 preface.
    fn detect_protocol(&mut self, bytes: &[u8]) {
        let DetectedProtocol::Unknown(matched) = &mut self.protocol else {
            return;
        };
        let rest = &PREFACE[*matched..];
        let both = rest.len().min(bytes.len());
        if rest[..both] != bytes[..both] {
            self.protocol = DetectedProtocol::Http1;
            self.has_started = true;
        } else if both == rest.len() {
            self.protocol = DetectedProtocol::Http2;
        } else {
            *matched += both;
        }
    }

    fn add_allowance(&mut self) {
        self.idle_frames_left =
            (self.idle_frames_left + IDLE_FRAMES_PER_MESSAGE).min(IDLE_FRAMES_SAVED_MAX);
    }

    fn count_idle_frame(&mut self) -> io::Result<()> {
        if self.window_start.elapsed() > IDLE_WINDOW {
            (self.idle_frames_left, self.window_start) =
                (self.idle_frames_left.max(IDLE_FRAMES_MAX), Instant::now());
        }
        let Some(remaining) = self.idle_frames_left.checked_sub(1) else {
            let message = "too many frames without a request";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        };
        self.idle_frames_left = remaining;
        Ok(())
    }
}

impl Calls {
    fn read(&mut self, frame: &FrameHeader) {
        if frame.kind == HEADERS && frame.stream > self.newest {
            self.newest = frame.stream;
            self.open.insert(frame.stream);
        } else if frame.kind == RST_STREAM {
            self.open.remove(&frame.stream);
        }
    }

    fn written(&mut self, frame: &FrameHeader) {
        let is_last = matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
        if is_last || frame.kind == RST_STREAM {
            self.open.remove(&frame.stream);
        }
    }
}

impl FrameHeaderReader {
    fn skipping(skip: usize) -> Self {
        Self {
            skip,
            head: [0; HEADER_BYTES],
            len: 0,
        }
    }

    fn is_between_frames(&self) -> bool {
        self.skip == 0 && self.len == 0
    }

    /// Returns the next frame's header, and removes the inspected bytes from `bytes`.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<FrameHeader> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        *bytes = &bytes[skipped..];
        let count = (HEADER_BYTES - self.len).min(bytes.len());
        self.head[self.len..self.len + count].copy_from_slice(&bytes[..count]);
        self.len += count;
        *bytes = &bytes[count..];
        if self.len < HEADER_BYTES {
            return None;
        }
        self.len = 0;
        let [high, middle, low, kind, flags, stream @ ..] = self.head;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.skip = length;
        Some(FrameHeader {
            kind,
            flags,
            length,
            stream: u32::from_be_bytes(stream) & !RESERVED,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u8::try_from(payload).expect("short");
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 0];
        frame.resize(HEADER_BYTES + payload, b'x');
        frame
    }

    fn started() -> FrameMonitor {
        let mut frames = FrameMonitor::new(AllowedProtocol::Http2);
        frames.read(PREFACE).expect("the preface");
        frames
    }

    /// Returns true if the connection accepts `count` copies of `frame`, read in pieces of `piece`
    /// bytes.
    fn goes_on(frames: &mut FrameMonitor, frame: &[u8], count: usize, piece: usize) -> bool {
        let bytes = frame.repeat(count);
        bytes.chunks(piece).all(|piece| frames.read(piece).is_ok())
    }

    #[test]
    fn idle_frames_are_counted_however_they_are_cut() {
        let ping = frame(PING, 0, 8);
        for piece in [1, 7, 17, 1_000] {
            let mut frames = started();
            assert!(!frames.has_started());
            frames.read(&frame(SETTINGS, 0, 6)).expect("the first");
            assert!(frames.has_started());
            assert!(goes_on(&mut frames, &ping, 99, piece), "{piece}");
            assert!(!goes_on(&mut frames, &ping, 1, piece), "{piece}");
        }
    }

    #[test]
    fn every_kind_of_frame_without_a_request_counts() {
        for (kind, flags, payload) in [
            (DATA, 0, 0),
            (DATA, 0, MESSAGE_PREFIX_BYTES - 1),
            (2, 0, 5),
            (RST_STREAM, 0, 4),
            (SETTINGS, ACK, 0),
            (5, 0, 4),
            (PING, ACK, 8),
            (7, 0, 8),
            (WINDOW_UPDATE, 0, 4),
            (0x55, 0, 100),
        ] {
            let (mut frames, frame) = (started(), frame(kind, flags, payload));
            assert!(goes_on(&mut frames, &frame, 100, 50), "{kind}");
            assert!(!goes_on(&mut frames, &frame, 1, 50), "{kind}");
        }
        for (kind, flags, payload) in [
            (DATA, 0, MESSAGE_PREFIX_BYTES),
            (DATA, END_STREAM, 0),
            (HEADERS, 0, 50),
            (CONTINUATION, 0, 50),
        ] {
            let frame = frame(kind, flags, payload);
            assert!(goes_on(&mut started(), &frame, 10_000, 50), "{kind}");
        }
    }

    #[test]
    fn calls_and_answers_allow_some_more() {
        let (mut frames, update) = (started(), frame(WINDOW_UPDATE, 0, 4));
        // Many calls wait, and are cancelled together.
        let call = [frame(HEADERS, 0, 50), update.clone(), frame(DATA, 0, 50)].concat();
        assert!(goes_on(&mut frames, &call, 1_000, 100));
        assert!(goes_on(&mut frames, &frame(RST_STREAM, 0, 4), 1_000, 100));
        for _ in 0..10_000 {
            frames.written(&frame(DATA, 0, 50));
            assert!(goes_on(&mut frames, &update, 3, 100), "an answer is read");
        }
        let frames_max = usize::try_from(IDLE_FRAMES_SAVED_MAX).expect("a count");
        assert!(
            !goes_on(&mut frames, &update, frames_max + 1, 100),
            "all at once"
        );
    }

    #[test]
    fn calls_are_in_progress_until_the_response_ends_or_a_reset() {
        let on = |stream: u8, mut frame: Vec<u8>| {
            frame[HEADER_BYTES - 1] = stream;
            frame
        };
        let mut frames = started();
        for stream in [1, 3, 5, 7] {
            let call = on(stream, frame(HEADERS, 0, 50));
            frames.read(&call).expect("a call");
        }
        let trailers = on(7, frame(HEADERS, END_STREAM, 50));
        frames.read(&trailers).expect("trailers");
        assert_eq!(frames.calls(), Some(4));
        frames.written(&on(1, frame(HEADERS, 4, 50)));
        frames.written(&on(1, frame(DATA, 0, 50)));
        assert_eq!(frames.calls(), Some(4), "its answer has not ended");
        frames.written(&on(1, frame(HEADERS, END_STREAM, 50)));
        frames.written(&on(1, frame(RST_STREAM, 0, 4)));
        assert_eq!(frames.calls(), Some(3));
        frames.written(&on(3, frame(RST_STREAM, 0, 4)));
        let reset = on(5, frame(RST_STREAM, 0, 4));
        frames.read(&reset).expect("a reset");
        assert_eq!(frames.calls(), Some(1));
        frames.stop_counting_calls();
        assert_eq!(frames.calls(), None);
    }

    #[test]
    fn acknowledgements_are_owed() {
        let (mut frames, pong) = (started(), frame(PING, ACK, 8));
        for _ in 0..1_000 {
            frames.written(&frame(PING, 0, 8));
            assert!(goes_on(&mut frames, &pong, 1, 17));
        }
        frames.written(&frame(PING, ACK, 8).repeat(1_000));
        assert!(
            !goes_on(&mut frames, &pong, 101, 17),
            "unsolicited PING replies"
        );
    }

    #[test]
    fn where_both_are_spoken_a_part_of_the_preface_is_no_beginning() {
        for piece in [1, 5, 24] {
            let mut frames = FrameMonitor::new(AllowedProtocol::Either);
            for piece in PREFACE.chunks(piece) {
                frames.read(piece).expect("the preface");
                assert!(!frames.has_started());
            }
            assert!(!goes_on(&mut frames, &frame(PING, 0, 8), 101, 100));
        }
        for text in ["GET / HTTP/1.1\r\n", "PROPFIND / HTTP/1.1\r\n"] {
            let mut frames = FrameMonitor::new(AllowedProtocol::Either);
            for byte in text.as_bytes().chunks(1) {
                frames.read(byte).expect("HTTP/1.1");
            }
            assert!(frames.has_started(), "{text}");
        }
    }
}
