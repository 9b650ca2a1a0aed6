//! Connections and calls to brokers outside of lease streams, and messages for their errors.

use std::time::{Duration, SystemTime};

use leasehold::{Client, ClosureCause, ConnectError, Contention, Error, Holder};
use leasehold_proto::{
    address::is_exposed,
    text::plain,
    v1::{
        self as pb, ErrorReason, admin_service_client::AdminServiceClient,
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
    output,
    settings::Settings,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of a call, in addition to its wait in the queue.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Broker {
    pub(crate) url: String,
    channel: Channel,
    credential: Option<MetadataValue<Ascii>>,
}

impl Broker {
    /// Connects to the first broker that responds.
    pub(crate) async fn connect(settings: &Settings) -> Result<Self, Failure> {
        Self::connect_first(
            &settings.endpoint,
            settings,
            "--endpoint or LEASEHOLD_ENDPOINT",
        )
        .await
    }

    /// Connects to the admin port of the first broker that responds.
    pub(crate) async fn admin(settings: &Settings) -> Result<Self, Failure> {
        let hint = "--admin-endpoint or LEASEHOLD_ADMIN_ENDPOINT";
        Self::connect_first(&settings.admin_endpoint, settings, hint).await
    }

    async fn connect_first(urls: &str, settings: &Settings, hint: &str) -> Result<Self, Failure> {
        let mut errors = Vec::new();
        for url in allowed_urls(urls, settings)? {
            match Self::open(url, settings).await {
                Ok(broker) => return Ok(broker),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            errors.push("no endpoint is given".to_owned());
        }
        Err(unreachable_failure(&errors.join("; "), hint))
    }

    /// Connects to one broker.
    pub(crate) async fn open(url: &str, settings: &Settings) -> Result<Self, String> {
        let describe =
            |error: &dyn std::error::Error| format!("{url}: {}", format_with_causes(error));
        let mut endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(|error| describe(&error))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(CONNECT_TIMEOUT)
            .keep_alive_timeout(CONNECT_TIMEOUT);
        match endpoint.uri().scheme_str() {
            Some("http") => {}
            Some("https") => {
                let roots = || ClientTlsConfig::new().with_native_roots();
                let tls = settings.tls.clone().unwrap_or_else(roots);
                endpoint = endpoint.tls_config(tls).map_err(|error| describe(&error))?;
            }
            _ => {
                return Err(format!(
                    "{url}: expected an http or https URL, such as http://127.0.0.1:7070"
                ));
            }
        }
        let channel = endpoint.connect().await.map_err(|error| describe(&error))?;
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

    pub(crate) fn admin_service(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Creates a request with the credential and the time limit [`CALL_TIMEOUT`].
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = self.request_without_timeout(message);
        request.set_timeout(CALL_TIMEOUT);
        request
    }

    /// Creates a request with the credential and without a time limit.
    pub(crate) fn request_without_timeout<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.credential {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        request
    }

    /// Converts an error status to a failure. `operation` names the failed operation.
    pub(crate) fn failure_from_status(&self, operation: &str, status: &Status) -> Failure {
        let code = exit::code_of_reason(reason(status));
        if std::error::Error::source(status).is_some() {
            // With TLS 1.3 a broker rejects a client certificate after the client has completed its
            // handshake, and the reason may be lost.
            let hint = match self.url.starts_with("https:") {
                true => "; the broker may require a client certificate",
                false => "",
            };
            let text = format!(
                "{operation}: the broker at {} does not answer: {}{hint}",
                self.url,
                format_with_causes(status)
            );
            return Failure::new(code, text);
        }
        let reason_name = reason(status).map(|reason| {
            let name = reason.as_str_name();
            format!(", {}", name.trim_start_matches("ERROR_REASON_"))
        });
        Failure::new(
            code,
            format!(
                "{operation}: the broker at {} returned: {} ({:?}{})",
                self.url,
                plain(status.message()),
                status.code(),
                reason_name.unwrap_or_default()
            ),
        )
    }
}

/// Returns the URLs of a list, if the bearer token may be sent to each of them.
pub(crate) fn allowed_urls<'a>(
    urls: &'a str,
    settings: &Settings,
) -> Result<Vec<&'a str>, Failure> {
    let urls = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
    let urls: Vec<_> = urls.collect();
    if settings.token.is_some() && !settings.allow_insecure_token {
        let is_exposed = |url: &&&str| url.parse().is_ok_and(|url| is_exposed(&url));
        if let Some(url) = urls.iter().find(is_exposed) {
            return Err(insecure_token_failure(url));
        }
    }
    Ok(urls)
}

fn insecure_token_failure(url: &str) -> Failure {
    Failure::general(format!(
        "{url}: the bearer token would be sent unencrypted to another machine; use https, or \
         --allow-insecure-token on a trusted network"
    ))
}

/// Connects a client that renews leases.
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
        if let ConnectError::Unreachable(errors) = &error {
            return unreachable_failure(&plain(errors), "--endpoint or LEASEHOLD_ENDPOINT");
        }
        if let ConnectError::InsecureToken { endpoint } = &error {
            return insecure_token_failure(endpoint);
        }
        Failure::general(plain(&error.to_string()))
    })
}

fn unreachable_failure(errors: &str, hint: &str) -> Failure {
    Failure::general(format!(
        "no broker answers: {errors}. Start one with `leasehold-server dev`, or set its address with \
         {hint}"
    ))
}

/// Returns the error reason in the details of a status.
pub(crate) fn reason(status: &Status) -> Option<ErrorReason> {
    let details = status.get_error_details();
    let info = details.error_info()?;
    ErrorReason::from_str_name(&format!("ERROR_REASON_{}", info.reason))
}

/// Returns the contention in the details of a status.
pub(crate) fn contention(status: &Status) -> Option<pb::Contention> {
    let details = tonic_types::pb::Status::decode(status.details())
        .ok()?
        .details;
    let is_contention =
        |detail: &&prost_types::Any| detail.type_url.ends_with("/leasehold.v1.Contention");
    let detail = details.iter().find(is_contention)?;
    pb::Contention::decode(&*detail.value).ok()
}

/// Describes an acquire that failed. `next` is a hint for the user.
pub(crate) fn acquire_failure(name: &str, error: &Error, next: &str) -> Failure {
    let describe = plain(&error.to_string());
    let text = if let Error::Held(contention) = error {
        contention_text(name, contention, next)
    } else if let Error::WaitTimeout(contention) = error {
        format!(
            "the wait timed out: {}",
            contention_text(name, contention, next)
        )
    } else if let Error::QueueFull(_) = error {
        describe
    } else {
        return Failure::general(format!("cannot acquire {name:?}: {describe}"));
    };
    Failure::new(NOT_OBTAINED, text)
}

fn contention_text(name: &str, contention: &Contention, next: &str) -> String {
    let held_by = |holder: &Holder| describe_holder(&holder.owner, &holder.reason, holder.since);
    let holders: Vec<_> = contention.holders.iter().map(held_by).collect();
    let closed = contention.closure.as_ref().map(|closure| {
        let cause = match closure.cause {
            ClosureCause::LockDelay => "lock_delay",
            ClosureCause::AtLeast => "at_least",
            ClosureCause::Operator | ClosureCause::Other | _ => "operator",
        };
        let text = output::ClosureText {
            cause,
            until: closure.until,
            remaining: closure.remaining,
            owner: &closure.owner,
            reason: &closure.reason,
        };
        text.to_string()
    });
    describe_contention(name, &holders, closed, contention.queue_length, next)
}

/// Describes contention: `lock "a" is held by …, 2 waiting. Try: …`
pub(crate) fn describe_contention(
    name: &str,
    holders: &[String],
    closed: Option<String>,
    waiting: u32,
    next: &str,
) -> String {
    let by = match (holders, closed) {
        ([], None) => "is held".to_owned(),
        ([], Some(closed)) => format!("is {closed}"),
        (holders, None) => format!("is held by {}", holders.join(", ")),
        (holders, Some(closed)) => format!("is held by {}, and {closed}", holders.join(", ")),
    };
    let waiting = match waiting {
        0 => String::new(),
        count => format!(", {count} waiting"),
    };
    format!("lock {name:?} {by}{waiting}. {next}")
}

/// Describes a holder or waiter: `worker-9 ("nightly") since 14:02:11Z (4m12s)`.
pub(crate) fn describe_holder(owner: &str, reason: &str, since: Option<SystemTime>) -> String {
    let mut text = plain(owner);
    if !reason.is_empty() {
        text += &format!(" ({:?})", plain(reason));
    }
    if let Some(since) = since {
        let age = output::format_rounded(output::age(since));
        text += &format!(" since {} ({age})", output::format_time_of_day(since));
    }
    text
}

/// Formats an error with its causes, because tonic's own text is only "transport error".
fn format_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    plain(&text)
}
