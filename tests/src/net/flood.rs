//! Floods of HTTP/2 frames, which the broker must cut off.

use std::time::Duration;

use crate::{
    broker::{
        abuse_fixture::{AbuseFixture, AbuseRun},
        process::BrokerOptions,
    },
    clock::boottime,
    net::raw_http2::{
        RawHttp2Options,
        frames::{ENHANCE_YOUR_CALM, call_headers},
    },
};

/// Streaming call that waits for messages.
pub const HOLD: &str = "/leasehold.v1.LockService/Hold";
/// Unary call that waits for its only message.
pub const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
/// Time within which the broker must cut off a flood, or must respond after a few of its frames.
const REACTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of frames in one write.
const BATCH: u32 = 50;

/// A kind of frame that is useless in large numbers.
#[derive(Debug)]
pub struct Flood {
    pub name: &'static str,
    /// Returns the bytes that precede the flood.
    pub prefix: fn() -> Vec<u8>,
    /// Returns one frame of the flood, given its number.
    pub frame_bytes: fn(u32) -> Vec<u8>,
    /// Number of frames that the broker must accept. 0 if the first frame violates the protocol.
    pub accepted_frames: u32,
    /// Number of frames of which the broker must not read all.
    pub rejected_frames: u32,
}

/// Returns the id of the client stream with this number.
#[must_use]
pub fn stream_id(number: u32) -> u32 {
    2 * number + 1
}

/// Returns no bytes, for floods that need no preceding frames.
#[must_use]
pub fn no_prefix() -> Vec<u8> {
    Vec::new()
}

/// Returns the frames that open a `Hold` call on stream 1.
#[must_use]
pub fn open_hold_call() -> Vec<u8> {
    call_headers(1, HOLD, 0)
}

impl Flood {
    /// Sends frames until `many` are sent or the broker stops reading, and asserts that the broker
    /// closes the connection.
    async fn send_until_closed(&self, connection_options: &RawHttp2Options) -> AbuseRun {
        let raw = connection_options.open().await.expect("a place");
        let started_at = boottime();
        let mut sent = 0;
        let mut bytes = (self.prefix)();
        while sent < self.rejected_frames {
            let units = (sent..sent + BATCH).flat_map(self.frame_bytes);
            bytes.extend(units);
            if !raw.send(&bytes).await {
                break;
            }
            sent += BATCH;
            bytes.clear();
        }
        let seen = raw.wait_until_closed(REACTION_TIMEOUT).await;
        let seen = seen.unwrap_or_else(|| panic!("{}: not cut: {:?}", self.name, raw.received()));
        let calm = seen.go_away.unwrap_or(ENHANCE_YOUR_CALM);
        assert!(
            self.accepted_frames == 0 || calm == ENHANCE_YOUR_CALM,
            "{}: {seen:?}",
            self.name
        );
        AbuseRun {
            accepted: usize::try_from(self.accepted_frames.max(1)).expect("a count"),
            closed_after: boottime() - started_at,
            go_away: seen.go_away,
        }
    }

    /// Asserts that the connection survives `few` frames, which shows that a flood is cut off
    /// because of the number of its frames.
    async fn assert_few_frames_accepted(&self, connection_options: &RawHttp2Options) {
        let raw = connection_options.open().await.expect("a place");
        let units = (0..self.accepted_frames).flat_map(self.frame_bytes);
        let bytes: Vec<_> = (self.prefix)().into_iter().chain(units).collect();
        assert!(raw.send(&bytes).await, "{}: cut early", self.name);
        assert!(
            raw.is_responding(REACTION_TIMEOUT).await,
            "{}: cut early: {:?}",
            self.name,
            raw.received()
        );
    }
}

/// Runs each flood repeatedly against one broker, and compares control clients before, during and
/// after it.
pub async fn check_floods(floods: &[Flood], options: BrokerOptions) {
    let mut fixture = AbuseFixture::start(options, None).await;
    let connection_options = fixture.connection_options();
    for flood in floods {
        if flood.accepted_frames > 0 {
            flood.assert_few_frames_accepted(&connection_options).await;
        }
        fixture
            .repeat_abuse(flood.name, async || {
                flood.send_until_closed(&connection_options).await
            })
            .await;
    }
    fixture.finish().await;
}
