//! Settings `http2.*` of connections, each with the reason for its default.

use std::time::Duration;

use super::{
    reader::Reader,
    reloadable::HOUR,
    setting_def::{duration, number, setting, size},
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const COUNT_MAX: u32 = 1_000_000;

/// HTTP/2 and gRPC settings of a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2 {
    /// Maximum number of concurrent streams of a connection. A client with more calls waits.
    pub max_concurrent_streams: u32,
    /// Maximum number of resets that a client may provoke in the lifetime of a connection, by
    /// frames that violate the protocol (`MadeYouReset`, CVE-2025-8671).
    pub max_local_error_resets: u32,
    /// Maximum number of streams that a client may open and reset before they are accepted (Rapid
    /// Reset, CVE-2023-44487).
    pub max_pending_accept_resets: u32,
    /// Maximum size of request headers: large enough for credentials, too small for header bombs.
    pub max_header_list: u32,
    /// Maximum number of unread bytes of a connection. Small frames may use half of it, and a
    /// heartbeat counts 246 bytes: 4 MiB allow 8,500 unread heartbeats.
    pub connection_window: u32,
    /// Maximum number of unread bytes of a stream.
    pub stream_window: u32,
    /// Time of silence on a connection after which a keepalive ping is sent. Pings renew no leases.
    pub keepalive_interval: Duration,
    /// Time to wait for the response to a keepalive ping.
    pub keepalive_timeout: Duration,
    /// Age after which a connection accepts no new calls. Clients then spread over new replicas,
    /// and counters over a connection's lifetime restart.
    pub max_connection_age: Duration,
    /// Time for which a lease stream continues after its client was asked to open another one.
    pub max_connection_age_grace: Duration,
    /// Maximum size of a request. The largest valid request, a lease of 64 locks, fits.
    pub max_request: u32,
    /// Maximum size of a response, or of a message of a stream.
    pub max_reply: u32,
}

impl Http2 {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let about = "Maximum number of concurrent calls on a connection; a client with more calls \
            waits until one ends";
        let max_concurrent_streams =
            setting("http2.max_concurrent_streams", about).with_default("1000");
        let about = "Maximum number of stream resets that a client may cause by frames that \
            violate the protocol";
        let max_local_error_resets =
            setting("http2.max_local_error_resets", about).with_default("100");
        let about =
            "Maximum number of streams that a client may open and reset before they are accepted";
        let max_pending_accept_resets =
            setting("http2.max_pending_accept_resets", about).with_default("20");
        let about = "Maximum size of the headers of a request, including the credential";
        let max_header_list = setting("http2.max_header_list", about).with_default("8KiB");
        let about = "Maximum size of unread data that a client may send on a connection";
        let connection_window = setting("http2.connection_window", about).with_default("4MiB");
        let about = "Maximum size of unread data that a client may send on a stream";
        let stream_window = setting("http2.stream_window", about).with_default("64KiB");
        let about = "Time without data on a connection after which a keepalive ping is sent";
        let keepalive_interval = setting("http2.keepalive_interval", about).with_default("10s");
        let about =
            "Time to wait for the response to a keepalive ping before the connection is closed";
        let keepalive_timeout = setting("http2.keepalive_timeout", about).with_default("5s");
        let about = "Age after which a connection accepts no new calls";
        let max_connection_age = setting("http2.max_connection_age", about).with_default("30m");
        let about =
            "Time for which a lease stream continues after its client was asked to reconnect";
        let max_connection_age_grace =
            setting("http2.max_connection_age_grace", about).with_default("2m");
        let about = "Maximum size of a message from a client";
        let max_request = setting("http2.max_request", about).with_default("64KiB");
        let about = "Maximum size of a message to a client";
        let max_reply = setting("http2.max_reply", about).with_default("256KiB");
        let counted = || number(1, COUNT_MAX);
        Self {
            max_concurrent_streams: reader.read(max_concurrent_streams, counted()),
            max_local_error_resets: reader.read(max_local_error_resets, counted()),
            max_pending_accept_resets: reader.read(max_pending_accept_resets, counted()),
            max_header_list: reader.read(max_header_list, size()),
            connection_window: reader.read(connection_window, size()),
            stream_window: reader.read(stream_window, size()),
            keepalive_interval: reader.read(keepalive_interval, duration(SECOND, HOUR)),
            keepalive_timeout: reader.read(keepalive_timeout, duration(SECOND, HOUR)),
            max_connection_age: reader.read(max_connection_age, duration(SECOND, DAY)),
            max_connection_age_grace: reader.read(max_connection_age_grace, duration(SECOND, HOUR)),
            max_request: reader.read(max_request, size()),
            max_reply: reader.read(max_reply, size()),
        }
    }
}
