//! Client certificates: the caller that a certificate names, and the period in which it is valid.

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
/// Maximum length of a SPIFFE ID.
const ID_MAX: usize = 2_048;
/// Tag of a URI in the subject alternative names of a certificate (RFC 5280, section 4.2.1.6).
const URI_TAG: u32 = 6;
/// Maximum time between two reads of the system clock, which may be set in the meantime.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A client certificate. All clones share its withdrawal. Cheap to clone.
#[derive(Clone)]
pub struct Certificate(Arc<CertificateState>);

struct CertificateState {
    name: Result<Arc<str>, CertificateNameError>,
    expires: SystemTime,
    chain: Vec<CertificateDer<'static>>,
    withdrawn: CancellationToken,
}

/// The reason why a certificate names no caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateNameError {
    NoUri,
    SeveralUris,
    /// The URI is not the SPIFFE ID of a workload.
    NoSpiffeId,
}

impl Certificate {
    /// Parses the chain that a client has presented, with its own certificate first. Returns `None`
    /// if the certificate cannot be parsed.
    #[must_use]
    pub fn read(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let (_, certificate) = parse_x509_certificate(chain.first()?).ok()?;
        let not_after = certificate.validity().not_after.timestamp();
        let not_after = Duration::from_secs(u64::try_from(not_after).unwrap_or_default());
        Some(Self(Arc::new(CertificateState {
            name: name(&certificate),
            // A certificate is valid through the last second (RFC 5280, section 4.1.2.5).
            expires: SystemTime::UNIX_EPOCH.checked_add(not_after + Duration::from_secs(1))?,
            chain: chain
                .iter()
                .map(|certificate_der| certificate_der.clone().into_owned())
                .collect(),
            withdrawn: CancellationToken::new(),
        })))
    }

    /// Returns the caller that the certificate names: its only URI, a SPIFFE ID.
    ///
    /// # Errors
    /// If the certificate names no caller.
    pub fn name(&self) -> Result<&Arc<str>, CertificateNameError> {
        self.0.name.as_ref().map_err(|error| *error)
    }

    /// Returns the time at which the certificate expires.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.0.expires
    }

    /// Returns the chain that the client has presented, with its own certificate first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.chain
    }

    /// Marks the certificate as withdrawn, because no current authority has signed it.
    pub fn withdraw(&self) {
        self.0.withdrawn.cancel();
    }

    /// Returns true if the certificate has neither expired nor been withdrawn.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.0.withdrawn.is_cancelled() && SystemTime::now() < self.0.expires
    }

    /// Waits until the certificate has expired or is withdrawn.
    pub async fn until_invalid(&self) {
        tokio::select! {
            () = self.0.withdrawn.cancelled() => {}
            () = sleep_until_system_time(self.0.expires) => {}
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

impl fmt::Display for CertificateNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoUri => "it has no URI",
            Self::SeveralUris => "it has several URIs",
            Self::NoSpiffeId => "its URI is not the SPIFFE ID of a workload",
        })
    }
}

/// Waits until the system clock reaches `time`.
pub(super) async fn sleep_until_system_time(time: SystemTime) {
    while let Ok(remaining) = time.duration_since(SystemTime::now())
        && !remaining.is_zero()
    {
        sleep(remaining.min(CLOCK_CHECK_INTERVAL)).await;
    }
}

/// Returns the only URI of a certificate. A certificate with several URIs, of any scheme, names
/// no caller (SPIFFE X.509-SVID, section 2). A URI of another scheme could be the name of
/// another kind of caller.
fn name(certificate: &X509Certificate<'_>) -> Result<Arc<str>, CertificateNameError> {
    let names = certificate.subject_alternative_name();
    let names = names.map_err(|_| CertificateNameError::NoSpiffeId)?;
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
        (None, _) => Err(CertificateNameError::NoUri),
        (Some(_), Some(_)) => Err(CertificateNameError::SeveralUris),
        (Some(uri), None) => {
            let id = uri.filter(|uri| is_spiffe_id(uri));
            id.map(Arc::from).ok_or(CertificateNameError::NoSpiffeId)
        }
    }
}

/// Returns true if a URI is the SPIFFE ID of a workload (SPIFFE-ID, section 2): a trust domain, and
/// a path without empty or relative segments.
fn is_spiffe_id(uri: &str) -> bool {
    let rest = uri.strip_prefix(SCHEME);
    let Some((domain, path)) = rest.and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    let is_punctuation = |byte: u8| matches!(byte, b'.' | b'-' | b'_');
    let is_domain_byte =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || is_punctuation(byte);
    let is_path_byte = |byte: u8| byte.is_ascii_alphanumeric() || is_punctuation(byte);
    let is_segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(is_path_byte);
    uri.len() <= ID_MAX
        && !domain.is_empty()
        && domain.bytes().all(is_domain_byte)
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
