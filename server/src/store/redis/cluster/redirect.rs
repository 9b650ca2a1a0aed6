//! What a server of a cluster says when another one has the lock: `MOVED`, or `ASK` on its way there.

use fred::error::Error;

use crate::store::redis::place::Address;

/// Where a lock is instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Redirect {
    pub(in crate::store::redis) slot: u16,
    pub(in crate::store::redis) to: Address,
    /// For this one command only: the slot has not moved yet, but maybe the lock has.
    pub(in crate::store::redis) asking: bool,
}

impl Redirect {
    /// Reads `MOVED 3999 host:port`. `from` is who said it: the host may be left out for its own.
    pub(in crate::store::redis) fn of(error: &Error, from: &Address) -> Option<Self> {
        let mut words = error.details().split_whitespace();
        let asking = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let slot = words.next()?.parse().ok()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let host = match host {
            "" | "?" => from.host.as_str(),
            host => host,
        };
        let to = Address {
            host: host.to_owned(),
            port: port.parse().ok()?,
        };
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
            Some((redirect.slot, redirect.to.to_string(), redirect.asking))
        };
        let at = |to: &str, asking| Some((3_999, to.to_owned(), asking));
        assert_eq!(read("MOVED 3999 10.0.0.1:6381"), at("10.0.0.1:6381", false));
        assert_eq!(read("ASK 3999 a.example:6381"), at("a.example:6381", true));
        assert_eq!(read("MOVED 3999 :6381"), at("here:6381", false));
        assert_eq!(read("MOVED 3999 ::1:6381"), at("[::1]:6381", false));
        for odd in ["MOVED", "MOVED x a:1", "MOVED 3999 a", "TRYAGAIN 3999 a:1"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
