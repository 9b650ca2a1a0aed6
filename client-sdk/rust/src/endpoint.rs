//! Where the brokers are, and how to reach and convince them.

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

/// Establishing a connection, and opening a stream on it.
pub(crate) const OPEN_LIMIT: Duration = Duration::from_secs(2);
/// A dead connection must be known before a place in line is given up, 6 s after the last heartbeat:
/// 2 s without any message, and 2 s without an answer to a ping.
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_LIMIT: Duration = Duration::from_secs(2);

/// One broker, or a name behind which there are several.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    name: String,
    address: Address,
}

/// Shown with every call and every stream. Its value is in no log.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credential(MetadataValue<Ascii>);

/// Where the credential comes from.
#[derive(Debug, Clone, Default)]
pub(crate) enum Source {
    /// There is none.
    #[default]
    Nowhere,
    /// Always the same.
    Fixed(Credential),
    /// Whatever is in this file now.
    File(PathBuf),
}

/// Why there is no stream.
#[derive(Debug)]
pub(crate) struct NotOpen {
    pub(crate) why: String,
    /// The broker answers, and does not know the credential.
    pub(crate) is_denied: bool,
}

/// A connection to a broker.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
    pub(crate) credential: Option<Credential>,
    is_tls: bool,
}

/// Makes endpoints of a comma-separated list of URLs.
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
        let invalid = |why: String| ConnectError::InvalidEndpoint {
            endpoint: url.to_owned(),
            why,
        };
        let address = Address::from_shared(url.to_owned());
        let address = address.map_err(|error| invalid(error.to_string()))?;
        match address.uri().scheme_str() {
            Some("http") => {}
            Some("https") if cfg!(feature = "tls") => {}
            Some("https") => return Err(invalid("needs the feature `tls`".to_owned())),
            _ => return Err(invalid("is no http or https URL".to_owned())),
        }
        Ok(Self {
            name: url.to_owned(),
            address: address
                .connect_timeout(OPEN_LIMIT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_LIMIT),
        })
    }

    /// The https endpoints with this TLS configuration.
    #[cfg(feature = "tls")]
    pub(crate) fn tls(self, tls: tonic::transport::ClientTlsConfig) -> Result<Self, ConnectError> {
        if !self.is_tls() {
            return Ok(self);
        }
        let address = self.address.tls_config(tls);
        let address = address.map_err(|error| ConnectError::InvalidEndpoint {
            endpoint: self.name.clone(),
            why: error.to_string(),
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
    pub(crate) fn refuse_exposed_token(&self) -> Result<(), ConnectError> {
        if is_exposed(self.address.uri()) {
            let endpoint = self.name.clone();
            return Err(ConnectError::InsecureToken { endpoint });
        }
        Ok(())
    }

    /// Connects.
    pub(crate) async fn connect(
        &self,
        credential: Option<Credential>,
    ) -> Result<Connection, NotOpen> {
        let channel = self.address.connect().await;
        let why = |error| NotOpen::new(format!("{}: {}", self.name, causes(&error)));
        let channel = channel.map_err(why)?;
        Ok(Connection {
            channel,
            credential,
            is_tls: self.is_tls(),
        })
    }
}

impl Credential {
    /// Of a bearer token.
    pub(crate) fn new(bearer: &str) -> Result<Self, ConnectError> {
        let invalid = || ConnectError::InvalidCredential("is not printable ASCII".to_owned());
        // The parser takes more than that, and brokers may not.
        if !bearer.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(invalid());
        }
        let value = format!("Bearer {bearer}").parse();
        let mut value: MetadataValue<Ascii> = value.map_err(|_| invalid())?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// As it stands in the header.
    pub(crate) fn authorization(&self) -> String {
        self.0.to_str().unwrap_or_default().to_owned()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

impl Source {
    /// What is to be shown now.
    pub(crate) fn now(&self) -> Result<Option<Credential>, ConnectError> {
        match self {
            Self::Nowhere => Ok(None),
            Self::Fixed(credential) => Ok(Some(credential.clone())),
            Self::File(path) => {
                let unread = |error| format!("cannot be read from {}: {error}", path.display());
                let token = fs::read_to_string(path).map_err(unread);
                let token = token.map_err(ConnectError::InvalidCredential)?;
                Credential::new(token.trim()).map(Some)
            }
        }
    }

    /// Whether this was not replaced. A file that cannot be read may be about to be.
    pub(crate) fn is_still(&self, shown: Option<&Credential>) -> bool {
        self.now().is_ok_and(|newest| newest.as_ref() == shown)
    }
}

impl NotOpen {
    pub(crate) fn new(why: String) -> Self {
        let is_denied = false;
        Self { why, is_denied }
    }
}

impl Connection {
    /// Opens a lease stream that sends what comes out of `requests`.
    pub(crate) async fn hold(
        &self,
        requests: UnboundedReceiverStream<HoldRequest>,
    ) -> Result<Streaming<HoldResponse>, NotOpen> {
        let opened = self.locks().hold(self.request(requests)).await;
        let opened = opened.map_err(|status| NotOpen {
            why: self.why_not(&status),
            is_denied: status.code() == Code::Unauthenticated,
        })?;
        Ok(opened.into_inner())
    }

    fn why_not(&self, status: &Status) -> String {
        match std::error::Error::source(status) {
            None => format!("{}: {}", status.code(), status.message()),
            // TLS 1.3 refuses a client after its side of the handshake, and the reason may get lost.
            Some(broken) if self.is_tls => {
                let hint = "does the broker want a client certificate?";
                format!("{}; {hint}", causes(broken))
            }
            Some(broken) => causes(broken),
        }
    }

    pub(crate) fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone())
    }

    pub(crate) fn inspection(&self) -> InspectionServiceClient<Channel> {
        InspectionServiceClient::new(self.channel.clone())
    }

    /// A request with the credential.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(Credential(value)) = &self.credential {
            let metadata = request.metadata_mut();
            metadata.insert("authorization", value.clone());
        }
        request
    }
}

/// An error with what is behind it: tonic's own text is "transport error".
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// What all streams of a client share.
#[derive(Debug)]
pub(crate) struct Brokers {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) source: Source,
}

/// Shared by the client's tasks.
pub(crate) type SharedBrokers = Arc<Brokers>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_needs_the_feature() {
        let refused = parse("http://a:7070, https://b:7070").err();
        let refused = refused.map(|error| error.to_string());
        if cfg!(feature = "tls") {
            assert_eq!(refused, None);
        } else {
            let why = refused.expect("it cannot be reached");
            assert!(
                why.contains("\"https://b:7070\": needs the feature `tls`"),
                "{why}"
            );
        }
    }

    #[test]
    fn tokens_are_exposed_by_plaintext_to_other_machines() {
        let urls = "http://localhost:1,http://127.0.0.2,http://[::1]:1,http://b:1";
        let protects = |one: &Endpoint| one.refuse_exposed_token().is_ok();
        let endpoints = parse(urls).expect("URLs");
        let protected: Vec<_> = endpoints.iter().map(protects).collect();
        assert_eq!(protected, [true, true, true, false]);
        if cfg!(feature = "tls") {
            let endpoints = parse("https://b:1").expect("a URL");
            assert!(endpoints.iter().all(protects));
        }
    }

    #[test]
    fn what_is_no_url_of_a_broker_is_refused() {
        for endpoint in ["a:7070", "ftp://a:7070", "http://"] {
            let refused = parse(endpoint);
            let is_named = matches!(
                &refused,
                Err(ConnectError::InvalidEndpoint { endpoint: named, .. }) if named == endpoint
            );
            assert!(is_named, "{endpoint}: {refused:?}");
        }
        assert!(matches!(parse(" , "), Err(ConnectError::NoEndpoint)));
    }
}
