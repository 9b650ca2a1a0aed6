//! Calls to the broker that need no stream, and what its answers mean to people.

use std::time::{Duration, SystemTime};

use leasehold::{Busy, Client, ConnectError, Error, Holder};
use leasehold_proto::{
    address::is_exposed,
    text::plain,
    v1::{
        Contention, ErrorReason, admin_service_client::AdminServiceClient,
        inspection_service_client::InspectionServiceClient, lock_service_client::LockServiceClient,
    },
};
use prost::Message as _;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, ClientTlsConfig, Endpoint},
};
use tonic_types::StatusExt as _;

use crate::{
    exit::{self, Failure, NOT_OBTAINED},
    settings::Settings,
    show,
};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long a call may take, besides what it waits in line.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(10);

/// A connection to one broker.
pub(crate) struct Broker {
    pub(crate) url: String,
    channel: Channel,
    credential: Option<MetadataValue<Ascii>>,
}

impl Broker {
    /// The first of the brokers that answers.
    pub(crate) async fn connect(settings: &Settings) -> Result<Self, Failure> {
        Self::first_of(
            &settings.endpoint,
            settings,
            "--endpoint or LEASEHOLD_ENDPOINT",
        )
        .await
    }

    /// The admin port.
    pub(crate) async fn admin(settings: &Settings) -> Result<Self, Failure> {
        let hint = "--admin-endpoint or LEASEHOLD_ADMIN_ENDPOINT";
        Self::first_of(&settings.admin_endpoint, settings, hint).await
    }

    async fn first_of(urls: &str, settings: &Settings, hint: &str) -> Result<Self, Failure> {
        let mut why = Vec::new();
        for url in each(urls, settings)? {
            match Self::open(url, settings).await {
                Ok(broker) => return Ok(broker),
                Err(error) => why.push(error),
            }
        }
        if why.is_empty() {
            why.push("none is named".to_owned());
        }
        Err(unreachable(&why.join("; "), hint))
    }

    /// One broker.
    pub(crate) async fn open(url: &str, settings: &Settings) -> Result<Self, String> {
        let said = |error: &dyn std::error::Error| format!("{url}: {}", causes(error));
        let mut endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(|error| said(&error))?
            .connect_timeout(CONNECT_LIMIT)
            .http2_keep_alive_interval(CONNECT_LIMIT)
            .keep_alive_timeout(CONNECT_LIMIT);
        match endpoint.uri().scheme_str() {
            Some("http") => {}
            Some("https") => {
                let roots = || ClientTlsConfig::new().with_native_roots();
                let tls = settings.tls.clone().unwrap_or_else(roots);
                endpoint = endpoint.tls_config(tls).map_err(|error| said(&error))?;
            }
            _ => return Err(format!("{url}: is no URL as in http://127.0.0.1:7070")),
        }
        let channel = endpoint.connect().await.map_err(|error| said(&error))?;
        let credential = settings.token.as_ref().map(|token| {
            let value: Result<MetadataValue<Ascii>, _> = format!("Bearer {token}").parse();
            let mut value = value.map_err(|_| "the bearer token is not printable ASCII")?;
            value.set_sensitive(true);
            Ok::<_, &str>(value)
        });
        Ok(Self {
            url: url.to_owned(),
            channel,
            credential: credential.transpose().map_err(str::to_owned)?,
        })
    }

    pub(crate) fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone())
    }

    pub(crate) fn inspection(&self) -> InspectionServiceClient<Channel> {
        InspectionServiceClient::new(self.channel.clone())
    }

    pub(crate) fn operators(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A request with the credential, given up after [`CALL_LIMIT`].
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = self.lasting(message);
        request.set_timeout(CALL_LIMIT);
        request
    }

    /// A request with the credential that may take any time.
    pub(crate) fn lasting<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.credential {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        request
    }

    /// What the broker said, after `what` failed.
    pub(crate) fn refused(&self, what: &str, status: &Status) -> Failure {
        let code = exit::of_reason(reason(status));
        if std::error::Error::source(status).is_some() {
            // TLS 1.3 refuses a client after its side of the handshake, and the reason may get lost.
            let hint = match self.url.starts_with("https:") {
                true => "; does the broker want a client certificate?",
                false => "",
            };
            let text = format!(
                "{what}: the broker at {} does not answer: {}{hint}",
                self.url,
                causes(status)
            );
            return Failure::new(code, text);
        }
        let named = reason(status).map(|reason| {
            let name = reason.as_str_name();
            format!(", {}", name.trim_start_matches("ERROR_REASON_"))
        });
        Failure::new(
            code,
            format!(
                "{what}: the broker at {} says: {} ({:?}{})",
                self.url,
                plain(status.message()),
                status.code(),
                named.unwrap_or_default()
            ),
        )
    }
}

/// Returns the URLs of a list, if the bearer token may be sent to each of them.
pub(crate) fn each<'a>(urls: &'a str, settings: &Settings) -> Result<Vec<&'a str>, Failure> {
    let urls = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
    let urls: Vec<_> = urls.collect();
    if settings.token.is_some() && !settings.allow_insecure_token {
        let is_exposed = |url: &&&str| url.parse().is_ok_and(|url| is_exposed(&url));
        if let Some(url) = urls.iter().find(is_exposed) {
            return Err(insecure_token(url));
        }
    }
    Ok(urls)
}

fn insecure_token(url: &str) -> Failure {
    Failure::own(format!(
        "{url}: the bearer token would cross the network unencrypted; use https, or \
         --allow-insecure-token where the network itself is trusted"
    ))
}

/// A client that keeps leases alive.
pub(crate) async fn client(settings: &Settings, owner: &str) -> Result<Client, Failure> {
    let mut builder = Client::builder(&settings.endpoint)
        .owner(owner)
        .allow_insecure_token(settings.allow_insecure_token);
    if let Some(path) = &settings.token_file {
        builder = builder.bearer_token_file(path);
    }
    if let Some(tls) = &settings.tls {
        builder = builder.tls(tls.clone());
    }
    builder.connect().await.map_err(|error| {
        if let ConnectError::Unreachable(why) = &error {
            return unreachable(&plain(why), "--endpoint or LEASEHOLD_ENDPOINT");
        }
        if let ConnectError::InsecureToken { endpoint } = &error {
            return insecure_token(endpoint);
        }
        Failure::own(plain(&error.to_string()))
    })
}

fn unreachable(why: &str, hint: &str) -> Failure {
    Failure::own(format!(
        "no broker answers: {why}. Start one with `leasehold-server dev`, or name yours with {hint}"
    ))
}

/// Why a status says that it was refused.
pub(crate) fn reason(status: &Status) -> Option<ErrorReason> {
    let details = status.get_error_details();
    let info = details.error_info()?;
    ErrorReason::from_str_name(&format!("ERROR_REASON_{}", info.reason))
}

/// Who was in the way of a call.
pub(crate) fn contention(status: &Status) -> Option<Contention> {
    let details = tonic_types::pb::Status::decode(status.details())
        .ok()?
        .details;
    let is_it = |detail: &&prost_types::Any| detail.type_url.ends_with("/leasehold.v1.Contention");
    let found = details.iter().find(is_it)?;
    Contention::decode(&*found.value).ok()
}

/// Why the client did not get a lock. `next` is what to try.
pub(crate) fn not_granted(name: &str, error: &Error, next: &str) -> Failure {
    let said = plain(&error.to_string());
    let text = if let Error::Held(busy) = error {
        busy_text(name, busy, next)
    } else if let Error::WaitTimeout(busy) = error {
        format!("the wait is over: {}", busy_text(name, busy, next))
    } else if let Error::QueueFull(_) = error {
        said
    } else {
        return Failure::own(format!("cannot take {name:?}: {said}"));
    };
    Failure::new(NOT_OBTAINED, text)
}

fn busy_text(name: &str, busy: &Busy, next: &str) -> String {
    let held_by = |holder: &Holder| held_by(&holder.owner, &holder.reason, holder.since);
    let holders: Vec<_> = busy.holders.iter().map(held_by).collect();
    in_the_way(name, &holders, busy.queue_length, next)
}

/// `lock "a" is held by …, 2 waiting. Try: …`
pub(crate) fn in_the_way(name: &str, holders: &[String], waiting: u32, next: &str) -> String {
    let by = match holders {
        [] => "is taken".to_owned(),
        holders => format!("is held by {}", holders.join(", ")),
    };
    let waiting = match waiting {
        0 => String::new(),
        count => format!(", {count} waiting"),
    };
    format!("lock {name:?} {by}{waiting}. {next}")
}

/// Describes who holds a lock or waits for it: `worker-9 ("nightly") since 14:02:11Z (4m12s)`.
pub(crate) fn held_by(owner: &str, reason: &str, since: Option<SystemTime>) -> String {
    let mut text = plain(owner);
    if !reason.is_empty() {
        text += &format!(" ({:?})", plain(reason));
    }
    if let Some(since) = since {
        let age = show::about(show::age(since));
        text += &format!(" since {} ({age})", show::time_of_day(since));
    }
    text
}

/// An error with what is behind it: tonic's own text is "transport error".
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    plain(&text)
}
