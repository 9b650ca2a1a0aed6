//! Endpoints of brokers, connections to them, and credentials.

use std::{fmt, fs, path::PathBuf, sync::Arc, time::Duration};

use leasehold_proto::{
    address::is_exposed,
    v1::{
        HoldRequest, HoldResponse, inspection_service_client::InspectionServiceClient,
        lock_service_client::LockServiceClient,
    },
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint as Address},
};

use crate::error::ConnectError;

/// Time limit for connecting and opening a stream.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 keepalive pings. A dead connection is detected after 2 s without a message
/// and 2 s without a ping response, before the broker removes a waiter, 6 s after the waiter's last
/// heartbeat.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// Address of one broker, or of several brokers behind one name.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    name: String,
    address: Address,
}

/// Value of the `authorization` header of every call and stream. It is never logged.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credential(MetadataValue<Ascii>);

/// Source of the credential.
#[derive(Debug, Clone, Default)]
pub(crate) enum CredentialSource {
    /// No credential is sent.
    #[default]
    None,
    /// A credential that never changes.
    Fixed(Credential),
    /// A file, read again for each use.
    File(PathBuf),
}

/// Failure to open a stream.
#[derive(Debug)]
pub(crate) struct OpenError {
    pub(crate) reason: String,
    /// True if the broker responded and rejected the credential.
    pub(crate) is_denied: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
    pub(crate) credential: Option<Credential>,
    is_tls: bool,
}

/// Parses a comma-separated list of URLs.
pub(crate) fn parse(urls: &str) -> Result<Vec<Endpoint>, ConnectError> {
    let urls = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
    let endpoints: Vec<_> = urls.map(Endpoint::new).collect::<Result<_, _>>()?;
    if endpoints.is_empty() {
        return Err(ConnectError::NoEndpoint);
    }
    Ok(endpoints)
}

impl Endpoint {
    fn new(url: &str) -> Result<Self, ConnectError> {
        let invalid = |reason: String| ConnectError::InvalidEndpoint {
            endpoint: url.to_owned(),
            reason,
        };
        let address = Address::from_shared(url.to_owned());
        let address = address.map_err(|error| invalid(error.to_string()))?;
        match address.uri().scheme_str() {
            Some("http") => {}
            Some("https") if cfg!(feature = "tls") => {}
            Some("https") => return Err(invalid("needs the feature `tls`".to_owned())),
            _ => return Err(invalid("is not an http or https URL".to_owned())),
        }
        Ok(Self {
            name: url.to_owned(),
            address: address
                .connect_timeout(OPEN_TIMEOUT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT),
        })
    }

    /// Applies a TLS configuration, if the endpoint is https.
    #[cfg(feature = "tls")]
    pub(crate) fn tls(self, tls: tonic::transport::ClientTlsConfig) -> Result<Self, ConnectError> {
        if !self.is_tls() {
            return Ok(self);
        }
        let address = self.address.tls_config(tls);
        let address = address.map_err(|error| ConnectError::InvalidEndpoint {
            endpoint: self.name.clone(),
            reason: error.to_string(),
        })?;
        Ok(Self { address, ..self })
    }

    fn is_tls(&self) -> bool {
        self.address.uri().scheme_str() == Some("https")
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns an error if a bearer token would cross a network unencrypted.
    pub(crate) fn reject_exposed_token(&self) -> Result<(), ConnectError> {
        if is_exposed(self.address.uri()) {
            let endpoint = self.name.clone();
            return Err(ConnectError::InsecureToken { endpoint });
        }
        Ok(())
    }

    pub(crate) async fn connect(
        &self,
        credential: Option<Credential>,
    ) -> Result<Connection, OpenError> {
        let channel = self.address.connect().await;
        let open_error =
            |error| OpenError::new(format!("{}: {}", self.name, format_with_causes(&error)));
        let channel = channel.map_err(open_error)?;
        Ok(Connection {
            channel,
            credential,
            is_tls: self.is_tls(),
        })
    }
}

impl Credential {
    /// Creates a credential from a bearer token.
    pub(crate) fn new(bearer: &str) -> Result<Self, ConnectError> {
        let invalid = || ConnectError::InvalidCredential("is not printable ASCII".to_owned());
        // The parser accepts more characters, which brokers may reject.
        if !bearer.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(invalid());
        }
        let value = format!("Bearer {bearer}").parse();
        let mut value: MetadataValue<Ascii> = value.map_err(|_| invalid())?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// Returns the value of the header.
    pub(crate) fn authorization(&self) -> String {
        self.0.to_str().unwrap_or_default().to_owned()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

impl CredentialSource {
    /// Reads the current credential.
    pub(crate) fn current(&self) -> Result<Option<Credential>, ConnectError> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(credential) => Ok(Some(credential.clone())),
            Self::File(path) => {
                let unread = |error| format!("cannot be read from {}: {error}", path.display());
                let token = fs::read_to_string(path).map_err(unread);
                let token = token.map_err(ConnectError::InvalidCredential)?;
                Credential::new(token.trim()).map(Some)
            }
        }
    }

    /// Returns true if `shown` is still the current credential. An unreadable file counts as
    /// changed, because it may be about to be replaced.
    pub(crate) fn is_current(&self, credential: Option<&Credential>) -> bool {
        self.current()
            .is_ok_and(|newest| newest.as_ref() == credential)
    }
}

impl OpenError {
    pub(crate) fn new(reason: String) -> Self {
        let is_denied = false;
        Self { reason, is_denied }
    }
}

impl Connection {
    /// Opens a lease stream that sends the messages of `requests`.
    pub(crate) async fn hold(
        &self,
        requests: UnboundedReceiverStream<HoldRequest>,
    ) -> Result<Streaming<HoldResponse>, OpenError> {
        let response = self.locks().hold(self.request(requests)).await;
        let response = response.map_err(|status| OpenError {
            reason: self.describe_failure(&status),
            is_denied: status.code() == Code::Unauthenticated,
        })?;
        Ok(response.into_inner())
    }

    fn describe_failure(&self, status: &Status) -> String {
        match std::error::Error::source(status) {
            None => format!("{}: {}", status.code(), status.message()),
            // With TLS 1.3 a broker rejects a client certificate after the client has completed its
            // handshake, and the reason may be lost.
            Some(broken) if self.is_tls => {
                let hint = "the broker may require a client certificate";
                format!("{}; {hint}", format_with_causes(broken))
            }
            Some(broken) => format_with_causes(broken),
        }
    }

    pub(crate) fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone())
    }

    pub(crate) fn inspection(&self) -> InspectionServiceClient<Channel> {
        InspectionServiceClient::new(self.channel.clone())
    }

    /// Creates a request with the credential.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(Credential(value)) = &self.credential {
            let metadata = request.metadata_mut();
            metadata.insert("authorization", value.clone());
        }
        request
    }
}

/// Formats an error with its causes, because tonic's own text is only "transport error".
fn format_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Endpoints and credential source, shared by all streams of a client.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) list: Vec<Endpoint>,
    pub(crate) credentials: CredentialSource,
}

pub(crate) type SharedEndpoints = Arc<Endpoints>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_needs_the_feature() {
        let error = parse("http://a:7070, https://b:7070").err();
        let error = error.map(|error| error.to_string());
        if cfg!(feature = "tls") {
            assert_eq!(error, None);
        } else {
            let reason = error.expect("it cannot be reached");
            assert!(
                reason.contains("\"https://b:7070\": needs the feature `tls`"),
                "{reason}"
            );
        }
    }

    #[test]
    fn tokens_are_exposed_by_plaintext_to_other_machines() {
        let urls = "http://localhost:1,http://127.0.0.2,http://[::1]:1,http://b:1";
        let protects = |endpoint: &Endpoint| endpoint.reject_exposed_token().is_ok();
        let endpoints = parse(urls).expect("URLs");
        let protected: Vec<_> = endpoints.iter().map(protects).collect();
        assert_eq!(protected, [true, true, true, false]);
        if cfg!(feature = "tls") {
            let endpoints = parse("https://b:1").expect("a URL");
            assert!(endpoints.iter().all(protects));
        }
    }

    #[test]
    fn an_invalid_broker_url_is_rejected() {
        for endpoint in ["a:7070", "ftp://a:7070", "http://"] {
            let result = parse(endpoint);
            let is_named = matches!(
                &result,
                Err(ConnectError::InvalidEndpoint { endpoint: named, .. }) if named == endpoint
            );
            assert!(is_named, "{endpoint}: {result:?}");
        }
        assert!(matches!(parse(" , "), Err(ConnectError::NoEndpoint)));
    }
}
