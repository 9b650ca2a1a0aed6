//! How connections are kept: each setting of HTTP/2 and gRPC with the reason for its default.

use std::time::Duration;

use super::{
    key::{key, number, size, time},
    live::HOUR,
    reader::Reader,
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const COUNT_MOST: u32 = 1_000_000;

/// Settings of the API's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2 {
    /// Streams of a connection; a client with more waits for one to end.
    pub max_concurrent_streams: u32,
    /// Resets that a client may provoke in the life of a connection, by frames that break the rules
    /// (`MadeYouReset`, CVE-2025-8671).
    pub max_local_error_resets: u32,
    /// Streams that a client may open and reset before they are looked at (Rapid Reset,
    /// CVE-2023-44487).
    pub max_pending_accept_resets: u32,
    /// Headers of a request: a credential fits, a bomb does not.
    pub max_header_list: u32,
    /// What a client may send on a connection unread. Half of it is also the budget of small
    /// frames, of which a heartbeat takes 246 bytes: 4 MiB are 8,500 heartbeats.
    pub connection_window: u32,
    /// What a client may send on a stream unread.
    pub stream_window: u32,
    /// How long a connection is silent before it is asked whether it lives. Renews nothing.
    pub keepalive_interval: Duration,
    /// How long it has to answer.
    pub keepalive_timeout: Duration,
    /// After this a connection takes no new calls, so that clients spread over new replicas and
    /// counters of a connection's life begin anew.
    pub max_connection_age: Duration,
    /// How long a lease stream goes on after its client was asked to open another one.
    pub max_connection_age_grace: Duration,
    /// The largest request: the largest legal one, a lease of 64 locks, fits.
    pub max_request: u32,
    /// The largest reply or message of a stream.
    pub max_reply: u32,
}

impl Http2 {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let about = "Calls at once on a connection; a client with more waits for one to end";
        let max_concurrent_streams = key("http2.max_concurrent_streams", about).or("1000");
        let about = "Resets of streams that a client may provoke by frames that break the rules";
        let max_local_error_resets = key("http2.max_local_error_resets", about).or("100");
        let about = "Streams that a client may open and reset before they are looked at";
        let max_pending_accept_resets = key("http2.max_pending_accept_resets", about).or("20");
        let about = "The headers of a request, credential included";
        let max_header_list = key("http2.max_header_list", about).or("8KiB");
        let about = "What a client may send unread on a connection";
        let connection_window = key("http2.connection_window", about).or("4MiB");
        let about = "What a client may send unread on a stream";
        let stream_window = key("http2.stream_window", about).or("64KiB");
        let about = "The silence on a connection after which it is asked whether it lives";
        let keepalive_interval = key("http2.keepalive_interval", about).or("10s");
        let about = "How long it has to answer that";
        let keepalive_timeout = key("http2.keepalive_timeout", about).or("5s");
        let about = "The age at which a connection takes no new calls";
        let max_connection_age = key("http2.max_connection_age", about).or("30m");
        let about = "How long a lease stream goes on after its client was asked to move it";
        let max_connection_age_grace = key("http2.max_connection_age_grace", about).or("2m");
        let about = "The largest message of a client";
        let max_request = key("http2.max_request", about).or("64KiB");
        let about = "The largest message to a client";
        let max_reply = key("http2.max_reply", about).or("256KiB");
        let counted = || number(1, COUNT_MOST);
        Self {
            max_concurrent_streams: reader.read(max_concurrent_streams, counted()),
            max_local_error_resets: reader.read(max_local_error_resets, counted()),
            max_pending_accept_resets: reader.read(max_pending_accept_resets, counted()),
            max_header_list: reader.read(max_header_list, size()),
            connection_window: reader.read(connection_window, size()),
            stream_window: reader.read(stream_window, size()),
            keepalive_interval: reader.read(keepalive_interval, time(SECOND, HOUR)),
            keepalive_timeout: reader.read(keepalive_timeout, time(SECOND, HOUR)),
            max_connection_age: reader.read(max_connection_age, time(SECOND, DAY)),
            max_connection_age_grace: reader.read(max_connection_age_grace, time(SECOND, HOUR)),
            max_request: reader.read(max_request, size()),
            max_reply: reader.read(max_reply, size()),
        }
    }
}
