//! Watches what a connection carries: whether the client speaks HTTP/2 at all, and frames that only make
//! work.

use std::{io, time::Duration};

use tokio::time::Instant;

/// A frame's length, kind, flags and stream (RFC 9113, section 4.1).
const HEAD: usize = 9;
/// What a client begins with (section 3.4).
const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
/// So many frames that ask for nothing may come within the time below while the broker answers no call:
/// neither tonic nor h2 limits them. Clients of gRPC send one for each answer, to measure the way.
const IDLE_MOST: u32 = 100;
const WITHIN: Duration = Duration::from_secs(10);

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
    speaks: Speaks,
    has_begun: bool,
    read: Heads,
    written: Heads,
    idle: u32,
    since: Instant,
}

/// Finds the heads of frames in a flow of bytes.
#[derive(Debug)]
struct Heads {
    /// Bytes to come that are no head.
    skip: usize,
    head: [u8; HEAD],
    len: usize,
}

impl Frames {
    pub(super) fn new(speaks: Speaks) -> Self {
        Self {
            speaks,
            has_begun: false,
            read: Heads::after(PREFACE),
            written: Heads::after(0),
            idle: 0,
            since: Instant::now(),
        }
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
        if self.speaks == Speaks::Either {
            self.has_begun |= !bytes.is_empty();
            return Ok(());
        }
        while let Some((kind, flags)) = self.read.next(&mut bytes) {
            self.has_begun = true;
            // An acknowledgement answers what the broker has sent.
            if matches!(kind, PING | SETTINGS) && flags & ACK == 0 || kind == PRIORITY {
                self.idle()?;
            }
        }
        Ok(())
    }

    /// Looks at what went to it.
    pub(super) fn written(&mut self, mut bytes: &[u8]) {
        if self.speaks == Speaks::Http2 {
            while let Some((kind, _)) = self.written.next(&mut bytes) {
                if matches!(kind, DATA | HEADERS) {
                    self.idle = 0;
                }
            }
        }
    }

    fn idle(&mut self) -> io::Result<()> {
        if self.since.elapsed() > WITHIN {
            (self.idle, self.since) = (0, Instant::now());
        }
        self.idle += 1;
        if self.idle > IDLE_MOST {
            let why = "too many frames that ask for nothing";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(())
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

    /// The next frame's kind and flags; takes `bytes` that were looked at away.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<(u8, u8)> {
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
        let [high, middle, low, kind, flags, ..] = self.head;
        self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Some((kind, flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: [u8; PREFACE] = [b'x'; PREFACE];

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u8::try_from(payload).expect("short");
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 0];
        frame.resize(HEAD + payload, b'x');
        frame
    }

    /// Whether the connection goes on after so many pings, read in pieces of `piece` bytes.
    fn goes_on(frames: &mut Frames, pings: usize, piece: usize) -> bool {
        let bytes = frame(PING, 0, 8).repeat(pings);
        bytes.chunks(piece).all(|piece| frames.read(piece).is_ok())
    }

    #[test]
    fn idle_frames_are_counted_however_they_are_cut() {
        for piece in [1, 7, 17, 1_000] {
            let mut frames = Frames::new(Speaks::Http2);
            frames.read(&BEGIN).expect("the preface");
            assert!(!frames.have_begun());
            frames.read(&frame(SETTINGS, ACK, 0)).expect("an answer");
            assert!(frames.have_begun());
            assert!(goes_on(&mut frames, 100, piece), "{piece}");
            assert!(!goes_on(&mut frames, 1, piece), "{piece}");
        }
    }

    #[test]
    fn an_answer_of_the_broker_allows_more() {
        let mut frames = Frames::new(Speaks::Http2);
        frames.read(&BEGIN).expect("the preface");
        for _ in 0..10 {
            assert!(goes_on(&mut frames, 60, 17));
            frames.written(&frame(PING, ACK, 8));
            frames.written(&frame(DATA, 0, 50));
        }
        frames.written(&frame(PING, ACK, 8).repeat(100));
        assert!(!goes_on(&mut frames, 101, 17), "pings are no answers");
    }
}
