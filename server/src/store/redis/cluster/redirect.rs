//! Redirects of a cluster: `MOVED`, or `ASK` while a slot is moving.

use fred::error::Error;

use super::{slot::SLOTS, slot_map::UNNAMED_HOSTS};
use crate::store::redis::location::Address;

/// The server that has a lock instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Redirect {
    pub(in crate::store::redis) slot: u16,
    /// `None` if the redirecting server has no name for that server.
    pub(in crate::store::redis) to: Option<Address>,
    /// True if the redirect is for one command only: the slot has not moved yet, but the lock may
    /// have.
    pub(in crate::store::redis) asking: bool,
}

impl Redirect {
    /// Parses `MOVED 3999 host:port`. `from` is the redirecting server, whose own host may be
    /// omitted. Returns `None` for a slot that does not exist.
    pub(in crate::store::redis) fn from_error(error: &Error, from: &Address) -> Option<Self> {
        let mut fields = error.details().split_whitespace();
        let asking = match fields.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let slot: u16 = fields.next()?.parse().ok()?;
        // Slots are indexes of tables with `SLOTS` entries, in which a larger slot would cause a
        // panic.
        if slot >= SLOTS {
            return None;
        }
        let (host, port) = fields.next()?.rsplit_once(':')?;
        let host = match host {
            "" => Some(from.host.as_str()),
            UNNAMED_HOSTS => None,
            host => Some(host),
        };
        let port = port.parse().ok()?;
        let to = host.map(|host| Address {
            host: host.to_owned(),
            port,
        });
        Some(Self { slot, to, asking })
    }
}

#[cfg(test)]
mod tests {
    use fred::error::ErrorKind;

    use super::*;

    #[test]
    fn redirections_are_read() {
        let from = Address {
            host: "here".to_owned(),
            port: 1,
        };
        let read = |text: &str| {
            let error = Error::new(ErrorKind::Cluster, text.to_owned());
            let redirect = Redirect::from_error(&error, &from)?;
            let to = redirect.to.map(|to| to.to_string());
            Some((redirect.slot, to, redirect.asking))
        };
        let at = |to: &str, asking| Some((3_999, Some(to.to_owned()), asking));
        assert_eq!(read("MOVED 3999 10.0.0.1:6381"), at("10.0.0.1:6381", false));
        assert_eq!(read("ASK 3999 a.example:6381"), at("a.example:6381", true));
        assert_eq!(read("MOVED 3999 :6381"), at("here:6381", false));
        assert_eq!(read("MOVED 3999 ::1:6381"), at("[::1]:6381", false));
        assert_eq!(read("MOVED 3999 ?:6381"), Some((3_999, None, false)));
        for malformed in ["MOVED", "MOVED x a:1", "MOVED 3999 a", "TRYAGAIN 3999 a:1"] {
            assert_eq!(read(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn a_slot_that_does_not_exist_is_no_redirection() {
        let from = Address {
            host: "here".to_owned(),
            port: 1,
        };
        let slot_of = |text: &str| {
            let error = Error::new(ErrorKind::Cluster, text.to_owned());
            Redirect::from_error(&error, &from).map(|redirect| redirect.slot)
        };
        assert_eq!(slot_of("MOVED 16383 a:1"), Some(16_383));
        for malformed in [
            "MOVED 16384 a:1",
            "ASK 16384 a:1",
            "MOVED 65535 a:1",
            "MOVED 65536 a:1",
        ] {
            assert_eq!(slot_of(malformed), None, "{malformed}");
        }
    }
}
