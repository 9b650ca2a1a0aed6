//! The certificate that a client shows when it connects: the caller that it names, and until when it
//! counts.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use x509_parser::{extensions::GeneralName, parse_x509_certificate, prelude::X509Certificate};

const SCHEME: &str = "spiffe://";
/// Length of the longest SPIFFE ID.
const ID_MAX: usize = 2_048;
/// The tag of a URI among the names of a certificate (RFC 5280, section 4.2.1.6).
const URI_TAG: u32 = 6;
/// Longest time until the clock of the machine is read again: it may be set meanwhile.
const CLOCK_CHECK: Duration = Duration::from_secs(60);

/// A client's certificate, of which all clones share the end. Cheap to clone.
#[derive(Clone)]
pub struct Certificate(Arc<Shown>);

struct Shown {
    name: Result<Arc<str>, Unnamed>,
    expires: SystemTime,
    chain: Vec<CertificateDer<'static>>,
    withdrawn: CancellationToken,
}

/// Why a certificate names no caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unnamed {
    /// It has no URI.
    NoUri,
    /// It has several.
    SeveralUris,
    /// Its URI is no SPIFFE ID of a workload.
    NoSpiffeId,
}

impl Certificate {
    /// Reads the chain that a client has shown, its own certificate first. `None`: that cannot be read.
    #[must_use]
    pub fn read(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let (_, certificate) = parse_x509_certificate(chain.first()?).ok()?;
        let not_after = certificate.validity().not_after.timestamp();
        let not_after = Duration::from_secs(u64::try_from(not_after).unwrap_or_default());
        Some(Self(Arc::new(Shown {
            name: name(&certificate),
            // The last second counts (RFC 5280, section 4.1.2.5).
            expires: SystemTime::UNIX_EPOCH.checked_add(not_after + Duration::from_secs(1))?,
            chain: chain.iter().map(|one| one.clone().into_owned()).collect(),
            withdrawn: CancellationToken::new(),
        })))
    }

    /// The caller that it names: its only URI, a SPIFFE ID.
    ///
    /// # Errors
    /// If it names none.
    pub fn name(&self) -> Result<&Arc<str>, Unnamed> {
        self.0.name.as_ref().map_err(|why| *why)
    }

    /// When it has expired.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.0.expires
    }

    /// The chain that the client has shown, its own certificate first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.chain
    }

    /// Notes that no authority that counts now has signed it.
    pub fn withdraw(&self) {
        self.0.withdrawn.cancel();
    }

    /// Returns whether it counts still.
    #[must_use]
    pub fn counts(&self) -> bool {
        !self.0.withdrawn.is_cancelled() && SystemTime::now() < self.0.expires
    }

    /// Waits until it counts no more.
    pub async fn ended(&self) {
        tokio::select! {
            () = self.0.withdrawn.cancelled() => {}
            () = reached(self.0.expires) => {}
        }
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("name", &self.0.name)
            .field("expires", &self.0.expires)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Unnamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoUri => "it has no URI",
            Self::SeveralUris => "it has several URIs",
            Self::NoSpiffeId => "its URI is no SPIFFE ID of a workload",
        })
    }
}

/// Waits until the clock of the machine shows a time.
pub(super) async fn reached(time: SystemTime) {
    while let Ok(left) = time.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        sleep(left.min(CLOCK_CHECK)).await;
    }
}

/// Returns the only URI of a certificate. One beside others, of whatever scheme, names nobody (SPIFFE
/// X.509-SVID, section 2), and one of another scheme could be the name of another kind of caller.
fn name(certificate: &X509Certificate<'_>) -> Result<Arc<str>, Unnamed> {
    let names = certificate.subject_alternative_name();
    let names = names.map_err(|_| Unnamed::NoSpiffeId)?;
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(Some(*uri)),
        GeneralName::Invalid(tag, _) if tag.0 == URI_TAG => Some(None),
        GeneralName::OtherName(..)
        | GeneralName::RFC822Name(_)
        | GeneralName::DNSName(_)
        | GeneralName::X400Address(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EDIPartyName(_)
        | GeneralName::IPAddress(_)
        | GeneralName::RegisteredID(_)
        | GeneralName::Invalid(..) => None,
    });
    match (uris.next(), uris.next()) {
        (None, _) => Err(Unnamed::NoUri),
        (Some(_), Some(_)) => Err(Unnamed::SeveralUris),
        (Some(uri), None) => {
            let id = uri.filter(|uri| is_spiffe_id(uri));
            id.map(Arc::from).ok_or(Unnamed::NoSpiffeId)
        }
    }
}

/// Returns whether a URI is the SPIFFE ID of a workload (SPIFFE-ID, section 2): a trust domain, and a
/// path without empty or relative segments.
fn is_spiffe_id(uri: &str) -> bool {
    let rest = uri.strip_prefix(SCHEME);
    let Some((domain, path)) = rest.and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    let is_mark = |byte: u8| matches!(byte, b'.' | b'-' | b'_');
    let of_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || is_mark(byte);
    let of_path = |byte: u8| byte.is_ascii_alphanumeric() || is_mark(byte);
    let is_segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(of_path);
    uri.len() <= ID_MAX
        && !domain.is_empty()
        && domain.bytes().all(of_domain)
        && path.split('/').all(is_segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_spiffe_ids_of_workloads_are_names() {
        for id in [
            "spiffe://corp/a",
            "spiffe://example.org/ns/orders/sa/Worker_1.2-3",
            "spiffe://10.0.0.1/a",
            "spiffe://my_domain/...",
        ] {
            assert!(is_spiffe_id(id), "{id}");
        }
        for uri in [
            "",
            "token:ops",
            "jwt:alice",
            "dns:worker",
            "https://corp/a",
            "spiffe:corp/a",
            "SPIFFE://corp/a",
            "spiffe://",
            "spiffe://corp",
            "spiffe://corp/",
            "spiffe:///a",
            "spiffe://corp/a/",
            "spiffe://corp//a",
            "spiffe://corp/./a",
            "spiffe://corp/../a",
            "spiffe://Corp/a",
            "spiffe://corp:1/a",
            "spiffe://me@corp/a",
            "spiffe://corp/a?b",
            "spiffe://corp/a#b",
            "spiffe://corp/%61",
            "spiffe://corp/*",
            "spiffe://corp/é",
            " spiffe://corp/a",
        ] {
            assert!(!is_spiffe_id(uri), "{uri}");
        }
        let long = |length: usize| format!("spiffe://corp/{}", "a".repeat(length - 14));
        assert!(is_spiffe_id(&long(ID_MAX)) && !is_spiffe_id(&long(ID_MAX + 1)));
    }
}
