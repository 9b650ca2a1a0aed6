//! Watches what a connection carries: whether the client speaks HTTP/2 at all, and frames that only make
//! work.

use std::{collections::HashSet, io, time::Duration};

use tokio::time::Instant;

use super::backlog::{Received, memory_of_data};

/// A frame's length, kind, flags and stream (RFC 9113, section 4.1).
const HEAD: usize = 9;
/// What a client begins with (section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
/// The bit of a stream's number that means nothing.
const RESERVED: u32 = 1 << 31;
/// What stands before each message of gRPC. Less in a frame is a piece that nobody sends so small.
const PREFIX: usize = 5;
/// So many frames that ask for nothing may come within the time below: neither tonic nor h2 limits
/// them.
const IDLE_MOST: u32 = 100;
const WITHIN: Duration = Duration::from_secs(10);
/// And so many more for each frame of a call or an answer: clients of gRPC open windows for both,
/// measure the way when they are answered, and reset what they have called off.
const FOR_EACH: u32 = 4;
/// So many at most are left for later.
const LEFT_MOST: u32 = 10_000;

/// What clients may speak on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/2 only.
    Http2,
    /// HTTP/1.1, too.
    Either,
}

/// What a connection has carried.
#[derive(Debug)]
pub(super) struct Frames {
    language: Language,
    has_begun: bool,
    read: Heads,
    written: Heads,
    /// Frames that ask for nothing and may still come.
    left: u32,
    since: Instant,
    /// Acknowledgements that the client has to send.
    pings: u32,
    settings: u32,
    /// What was read since this was asked last.
    received: Received,
    /// Calls without a whole answer, as long as they are counted.
    calls: Option<Calls>,
}

/// The calls of a connection that no answer was sent to.
#[derive(Debug, Default)]
struct Calls {
    open: HashSet<u32>,
    /// The newest stream: HEADERS of an older one are its trailers.
    newest: u32,
}

#[derive(Debug)]
enum Language {
    Http2,
    Http1,
    /// HTTP/2 as far as so many bytes of its preface go.
    Unknown(usize),
}

/// Finds the heads of frames in a flow of bytes.
#[derive(Debug)]
struct Heads {
    /// Bytes to come that are no head.
    skip: usize,
    head: [u8; HEAD],
    len: usize,
}

/// What a frame says of itself.
struct Head {
    kind: u8,
    flags: u8,
    length: usize,
    stream: u32,
}

impl Frames {
    pub(super) fn new(speaks: Speaks) -> Self {
        Self {
            language: match speaks {
                Speaks::Http2 => Language::Http2,
                Speaks::Either => Language::Unknown(0),
            },
            has_begun: false,
            read: Heads::after(PREFACE.len()),
            written: Heads::after(0),
            left: IDLE_MOST,
            since: Instant::now(),
            pings: 0,
            settings: 0,
            received: Received::default(),
            calls: Some(Calls::default()),
        }
    }

    /// Returns what was read since this was asked last.
    pub(super) fn take_received(&mut self) -> Received {
        std::mem::take(&mut self.received)
    }

    /// Returns the number of calls in progress, unless they are not counted any more.
    pub(super) fn calls(&self) -> Option<usize> {
        self.calls.as_ref().map(|calls| calls.open.len())
    }

    /// Stops counting calls.
    pub(super) fn stop_counting_calls(&mut self) {
        self.calls = None;
    }

    /// Whether the client has said what it speaks.
    pub(super) fn have_begun(&self) -> bool {
        self.has_begun
    }

    /// Looks at what came from the client.
    ///
    /// # Errors
    /// If it floods the connection.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.listen(bytes);
        if matches!(self.language, Language::Http1) {
            return Ok(());
        }
        while let Some(Head {
            kind,
            flags,
            length,
            stream,
        }) = self.read.next(&mut bytes)
        {
            self.has_begun = true;
            if let Some(calls) = &mut self.calls {
                calls.read(kind, stream);
            }
            let is_ack = flags & ACK != 0;
            if kind == DATA {
                self.received.bytes += memory_of_data(length);
            }
            match kind {
                HEADERS => {
                    self.received.heads += 1;
                    self.allow_more();
                }
                DATA if length >= PREFIX || flags & END_STREAM != 0 => {}
                // h2 limits these.
                CONTINUATION => {}
                PING if is_ack && self.pings > 0 => self.pings -= 1,
                SETTINGS if is_ack && self.settings > 0 => self.settings -= 1,
                _ => self.idle()?,
            }
        }
        Ok(())
    }

    /// Looks at what went to it.
    pub(super) fn written(&mut self, mut bytes: &[u8]) {
        if matches!(self.language, Language::Http1) {
            return;
        }
        while let Some(Head {
            kind,
            flags,
            stream,
            ..
        }) = self.written.next(&mut bytes)
        {
            if let Some(calls) = &mut self.calls {
                calls.written(kind, flags, stream);
            }
            match kind {
                DATA | HEADERS => self.allow_more(),
                PING if flags & ACK == 0 => self.pings += 1,
                SETTINGS if flags & ACK == 0 => self.settings += 1,
                _ => {}
            }
        }
    }

    /// Returns whether a frame can be sent now, which is none of the server's.
    pub(super) fn are_between(&self) -> bool {
        matches!(self.language, Language::Http2) && self.written.are_between()
    }

    /// Finds out what the client speaks, where that is open.
    fn listen(&mut self, bytes: &[u8]) {
        let Language::Unknown(known) = &mut self.language else {
            return;
        };
        let rest = &PREFACE[*known..];
        let both = rest.len().min(bytes.len());
        if rest[..both] != bytes[..both] {
            self.language = Language::Http1;
            self.has_begun = true;
        } else if both == rest.len() {
            self.language = Language::Http2;
        } else {
            *known += both;
        }
    }

    fn allow_more(&mut self) {
        self.left = (self.left + FOR_EACH).min(LEFT_MOST);
    }

    fn idle(&mut self) -> io::Result<()> {
        if self.since.elapsed() > WITHIN {
            (self.left, self.since) = (self.left.max(IDLE_MOST), Instant::now());
        }
        let Some(left) = self.left.checked_sub(1) else {
            let why = "too many frames that ask for nothing";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        };
        self.left = left;
        Ok(())
    }
}

impl Calls {
    fn read(&mut self, kind: u8, stream: u32) {
        if kind == HEADERS && stream > self.newest {
            self.newest = stream;
            self.open.insert(stream);
        } else if kind == RST_STREAM {
            self.open.remove(&stream);
        }
    }

    fn written(&mut self, kind: u8, flags: u8, stream: u32) {
        let is_last = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        if is_last || kind == RST_STREAM {
            self.open.remove(&stream);
        }
    }
}

impl Heads {
    fn after(skip: usize) -> Self {
        Self {
            skip,
            head: [0; HEAD],
            len: 0,
        }
    }

    fn are_between(&self) -> bool {
        self.skip == 0 && self.len == 0
    }

    /// The next frame's head; takes `bytes` that were looked at away.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Head> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        *bytes = &bytes[skipped..];
        let taken = (HEAD - self.len).min(bytes.len());
        self.head[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        *bytes = &bytes[taken..];
        if self.len < HEAD {
            return None;
        }
        self.len = 0;
        let [high, middle, low, kind, flags, stream @ ..] = self.head;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.skip = length;
        Some(Head {
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
        frame.resize(HEAD + payload, b'x');
        frame
    }

    fn begun() -> Frames {
        let mut frames = Frames::new(Speaks::Http2);
        frames.read(PREFACE).expect("the preface");
        frames
    }

    /// Whether the connection goes on after so many of these, read in pieces of `piece` bytes.
    fn goes_on(frames: &mut Frames, frame: &[u8], many: usize, piece: usize) -> bool {
        let bytes = frame.repeat(many);
        bytes.chunks(piece).all(|piece| frames.read(piece).is_ok())
    }

    #[test]
    fn idle_frames_are_counted_however_they_are_cut() {
        let ping = frame(PING, 0, 8);
        for piece in [1, 7, 17, 1_000] {
            let mut frames = begun();
            assert!(!frames.have_begun());
            frames.read(&frame(SETTINGS, 0, 6)).expect("the first");
            assert!(frames.have_begun());
            assert!(goes_on(&mut frames, &ping, 99, piece), "{piece}");
            assert!(!goes_on(&mut frames, &ping, 1, piece), "{piece}");
        }
    }

    #[test]
    fn every_kind_counts_that_asks_for_nothing() {
        for (kind, flags, payload) in [
            (DATA, 0, 0),
            (DATA, 0, PREFIX - 1),
            (2, 0, 5),
            (RST_STREAM, 0, 4),
            (SETTINGS, ACK, 0),
            (5, 0, 4),
            (PING, ACK, 8),
            (7, 0, 8),
            (WINDOW_UPDATE, 0, 4),
            (0x55, 0, 100),
        ] {
            let (mut frames, frame) = (begun(), frame(kind, flags, payload));
            assert!(goes_on(&mut frames, &frame, 100, 50), "{kind}");
            assert!(!goes_on(&mut frames, &frame, 1, 50), "{kind}");
        }
        for (kind, flags, payload) in [
            (DATA, 0, PREFIX),
            (DATA, END_STREAM, 0),
            (HEADERS, 0, 50),
            (CONTINUATION, 0, 50),
        ] {
            let frame = frame(kind, flags, payload);
            assert!(goes_on(&mut begun(), &frame, 10_000, 50), "{kind}");
        }
    }

    #[test]
    fn calls_and_answers_allow_some_more() {
        let (mut frames, update) = (begun(), frame(WINDOW_UPDATE, 0, 4));
        // Many calls that wait, and are called off together.
        let call = [frame(HEADERS, 0, 50), update.clone(), frame(DATA, 0, 50)].concat();
        assert!(goes_on(&mut frames, &call, 1_000, 100));
        assert!(goes_on(&mut frames, &frame(RST_STREAM, 0, 4), 1_000, 100));
        for _ in 0..10_000 {
            frames.written(&frame(DATA, 0, 50));
            assert!(goes_on(&mut frames, &update, 3, 100), "an answer is read");
        }
        let most = usize::try_from(LEFT_MOST).expect("a count");
        assert!(!goes_on(&mut frames, &update, most + 1, 100), "all at once");
    }

    #[test]
    fn calls_are_in_progress_until_their_answer_has_ended_or_they_are_reset() {
        let on = |stream: u8, mut frame: Vec<u8>| {
            frame[HEAD - 1] = stream;
            frame
        };
        let mut frames = begun();
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
        let (mut frames, pong) = (begun(), frame(PING, ACK, 8));
        for _ in 0..1_000 {
            frames.written(&frame(PING, 0, 8));
            assert!(goes_on(&mut frames, &pong, 1, 17));
        }
        frames.written(&frame(PING, ACK, 8).repeat(1_000));
        assert!(!goes_on(&mut frames, &pong, 101, 17), "nobody asked");
    }

    #[test]
    fn where_both_are_spoken_a_part_of_the_preface_is_no_beginning() {
        for piece in [1, 5, 24] {
            let mut frames = Frames::new(Speaks::Either);
            for piece in PREFACE.chunks(piece) {
                frames.read(piece).expect("the preface");
                assert!(!frames.have_begun());
            }
            assert!(!goes_on(&mut frames, &frame(PING, 0, 8), 101, 100));
        }
        for text in ["GET / HTTP/1.1\r\n", "PROPFIND / HTTP/1.1\r\n"] {
            let mut frames = Frames::new(Speaks::Either);
            for byte in text.as_bytes().chunks(1) {
                frames.read(byte).expect("HTTP/1.1");
            }
            assert!(frames.have_begun(), "{text}");
        }
    }
}
