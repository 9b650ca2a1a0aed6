//! What a server of a cluster says when another one has the lock: `MOVED`, or `ASK` on its way there.

use fred::error::Error;

use super::{map::UNNAMED, slot::SLOTS};
use crate::store::redis::place::Address;

/// Where a lock is instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Redirect {
    pub(in crate::store::redis) slot: u16,
    /// Nothing if the server has no name for it.
    pub(in crate::store::redis) to: Option<Address>,
    /// For this one command only: the slot has not moved yet, but maybe the lock has.
    pub(in crate::store::redis) asking: bool,
}

impl Redirect {
    /// Reads `MOVED 3999 host:port`. `from` is who said it: the host may be left out for its own.
    /// A slot that does not exist is no redirection.
    pub(in crate::store::redis) fn of(error: &Error, from: &Address) -> Option<Self> {
        let mut words = error.details().split_whitespace();
        let asking = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let slot: u16 = words.next()?.parse().ok()?;
        // Slots are indexes of tables with `SLOTS` entries: a larger one would be a panic.
        if slot >= SLOTS {
            return None;
        }
        let (host, port) = words.next()?.rsplit_once(':')?;
        let host = match host {
            "" => Some(from.host.as_str()),
            UNNAMED => None,
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
            let redirect = Redirect::of(&error, &from)?;
            let to = redirect.to.map(|to| to.to_string());
            Some((redirect.slot, to, redirect.asking))
        };
        let at = |to: &str, asking| Some((3_999, Some(to.to_owned()), asking));
        assert_eq!(read("MOVED 3999 10.0.0.1:6381"), at("10.0.0.1:6381", false));
        assert_eq!(read("ASK 3999 a.example:6381"), at("a.example:6381", true));
        assert_eq!(read("MOVED 3999 :6381"), at("here:6381", false));
        assert_eq!(read("MOVED 3999 ::1:6381"), at("[::1]:6381", false));
        assert_eq!(read("MOVED 3999 ?:6381"), Some((3_999, None, false)));
        for odd in ["MOVED", "MOVED x a:1", "MOVED 3999 a", "TRYAGAIN 3999 a:1"] {
            assert_eq!(read(odd), None, "{odd}");
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
            Redirect::of(&error, &from).map(|redirect| redirect.slot)
        };
        assert_eq!(slot_of("MOVED 16383 a:1"), Some(16_383));
        for odd in [
            "MOVED 16384 a:1",
            "ASK 16384 a:1",
            "MOVED 65535 a:1",
            "MOVED 65536 a:1",
        ] {
            assert_eq!(slot_of(odd), None, "{odd}");
        }
    }
}
