//! Where the brokers are, and how to reach and convince them.

use std::{sync::Arc, time::Duration};

use leasehold_proto::v1::{
    HoldRequest, HoldResponse, inspection_service_client::InspectionServiceClient,
    lock_service_client::LockServiceClient,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Request, Streaming,
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
#[derive(Clone)]
pub(crate) struct Credential(MetadataValue<Ascii>);

/// A connection to a broker.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
    credential: Option<Credential>,
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
        if self.address.uri().scheme_str() != Some("https") {
            return Ok(self);
        }
        let address = self.address.tls_config(tls);
        let address = address.map_err(|error| ConnectError::InvalidEndpoint {
            endpoint: self.name.clone(),
            why: error.to_string(),
        })?;
        Ok(Self { address, ..self })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Connects.
    pub(crate) async fn connect(
        &self,
        credential: Option<Credential>,
    ) -> Result<Connection, String> {
        let channel = self.address.connect().await;
        let channel = channel.map_err(|error| format!("{}: {}", self.name, causes(&error)))?;
        Ok(Connection {
            channel,
            credential,
        })
    }
}

impl Credential {
    /// A bearer token, or a whole value of the header when it names a scheme itself.
    pub(crate) fn new(bearer: &str) -> Result<Self, ConnectError> {
        let value = format!("Bearer {bearer}").parse();
        let mut value: MetadataValue<Ascii> = value.map_err(|_| ConnectError::InvalidCredential)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential")
    }
}

impl Connection {
    /// Opens a lease stream that sends what comes out of `requests`.
    pub(crate) async fn hold(
        &self,
        requests: UnboundedReceiverStream<HoldRequest>,
    ) -> Result<Streaming<HoldResponse>, String> {
        let opened = self.locks().hold(self.request(requests)).await;
        let opened = opened.map_err(|status| format!("{}: {}", status.code(), status.message()))?;
        Ok(opened.into_inner())
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
    pub(crate) credential: Option<Credential>,
}

/// Shared by the client's tasks.
pub(crate) type SharedBrokers = Arc<Brokers>;
