//! The client and its settings. A process needs one client.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use leasehold_proto::v1::Owner;
use tokio::sync::oneshot;

use crate::{
    command::Command,
    election::Election,
    endpoint::{self, Credential, CredentialSource, Endpoint, Endpoints},
    error::{ConnectError, Error, ErrorDetail},
    lock::Lock,
    runtime::ClientRuntime,
    target::Target,
};

/// A client of the brokers, from which locks and elections are created. Cheap to clone; one is
/// enough for a process.
///
/// A client runs its own thread, which renews its leases. The program therefore cannot delay
/// heartbeats, and the futures of the client run on any executor. The thread ends when the last
/// clone and the last guard are dropped.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) runtime: Arc<ClientRuntime>,
    pub(crate) owner: Arc<Owner>,
}

/// Settings of a client.
#[must_use = "ends with connect()"]
pub struct Builder {
    endpoints: String,
    owner: Option<String>,
    bearer: Option<String>,
    bearer_file: Option<PathBuf>,
    allow_insecure_token: bool,
    #[cfg(feature = "tls")]
    tls: Option<tonic::transport::ClientTlsConfig>,
}

impl Client {
    /// Connects to the first of the `endpoints` that responds. `endpoints` are URLs separated by
    /// commas, as in `http://a:7070,http://b:7070`. The client moves to the next endpoint if its
    /// broker fails.
    ///
    /// # Errors
    /// [`ConnectError`] if an endpoint is invalid or no broker accepts the connection.
    pub async fn connect(endpoints: &str) -> Result<Self, ConnectError> {
        Self::builder(endpoints).connect().await
    }

    /// Returns a builder for a client with more settings. `endpoints` as in
    /// [`connect`](Self::connect).
    pub fn builder(endpoints: &str) -> Builder {
        Builder {
            endpoints: endpoints.to_owned(),
            owner: None,
            bearer: None,
            bearer_file: None,
            allow_insecure_token: false,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Returns a request for one lock, given by its name or as a [`Target`].
    pub fn lock(&self, target: impl Into<Target>) -> Lock {
        Lock::new(self, vec![target.into()])
    }

    /// Returns a request for 2 to 16 different locks, which are acquired all or none under one
    /// lease, in an order that cannot deadlock.
    pub fn lock_all<T: Into<Target>>(&self, targets: impl IntoIterator<Item = T>) -> Lock {
        Lock::new(self, targets.into_iter().map(Into::into).collect())
    }

    /// Sets the limit of the semaphore `lock`, 1 to 1000 permits, or removes it with `None`. Returns
    /// the previous limit: the one in use or, after a removal, the one that was set.
    ///
    /// Callers follow a set limit, whatever limit they send, until it is removed, also while the
    /// lock is idle. A lower limit revokes nothing: nothing new is granted until enough permits are
    /// released. After a removal the limit in use stays until the lock is idle. Only the namespace
    /// and the name of `lock` are used.
    ///
    /// # Errors
    /// [`Error::LimitMismatch`] if the lock is in use as an exclusive or shared lock,
    /// [`Error::PermissionDenied`] if the access rules of the broker allow this client neither
    /// `set_limit` nor `admin`, [`Error::Invalid`] for another limit, and the other errors of a call.
    ///
    /// # Cancel safety
    /// If the future is dropped, the limit may have been set. Safe to repeat.
    pub async fn set_limit(
        &self,
        lock: impl Into<Target>,
        limit: Option<u32>,
    ) -> Result<Option<u32>, Error> {
        if limit == Some(0) {
            let detail = ErrorDetail::new("limit: must be 1 to 1000, or None to remove the limit");
            return Err(Error::Invalid(detail));
        }
        let lock = lock.into().lock_ref();
        let (reply, response) = oneshot::channel();
        let commands = self.runtime.pool.any_session()?;
        let sent = commands.send(Command::SetLimit { lock, limit, reply });
        sent.map_err(|_| Error::Closed)?;
        response.await.unwrap_or(Err(Error::Closed))
    }

    /// Returns the election of one leader for `job`.
    pub fn elect(&self, job: impl Into<Target>) -> Election {
        Election::new(self, job.into())
    }

    /// Cancels every wait, releases every lease, and closes the client with all its clones. Later
    /// calls fail with [`Error::Closed`], and remaining guards have lost
    /// their locks. Takes at most 2 s; leases that could not be released by then expire. Call
    /// `shutdown` before the process ends, so that the next waiter need not wait for the expiry.
    pub async fn shutdown(self) {
        self.runtime.pool.close().await;
    }

    pub(crate) fn new(runtime: Arc<ClientRuntime>, owner: String) -> Self {
        let owner = Arc::new(Owner {
            id: owner,
            ..Owner::default()
        });
        Self { runtime, owner }
    }
}

impl Builder {
    /// Sets the name of this process, which operators and other callers see as the owner of a held
    /// lock: 1 to 256 bytes. Default: host name and process id.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the bearer token that is sent to the brokers. Printable ASCII only.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer = Some(token.into());
        self
    }

    /// Sets a file that contains the bearer token, in place of
    /// [`bearer_token`](Self::bearer_token). The file is read every second, and a changed token is
    /// sent to the brokers, so that locks outlive the token with which they were acquired. White
    /// space around the token is ignored.
    pub fn bearer_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.bearer_file = Some(path.into());
        self
    }

    /// Allows sending the bearer token unencrypted to endpoints that are neither https nor on this
    /// machine (127.0.0.0/8, `::1` and `localhost`). Use it only if the network itself is trusted.
    /// Without it these endpoints are rejected with [`ConnectError::InsecureToken`].
    pub fn allow_insecure_token(mut self, allow: bool) -> Self {
        self.allow_insecure_token = allow;
        self
    }

    /// Sets the trusted root certificates of https endpoints and an optional client certificate.
    /// Default: the system trust store. A given configuration trusts only the certificates that it
    /// names; include the system trust store with `with_native_roots`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: tonic::transport::ClientTlsConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects to the first endpoint that responds within two seconds.
    ///
    /// # Errors
    /// [`ConnectError`] if a setting is invalid or no broker accepts the connection.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        #[cfg_attr(
            not(feature = "tls"),
            expect(unused_mut, reason = "changed for TLS only")
        )]
        let mut endpoints = endpoint::parse(&self.endpoints)?;
        #[cfg(feature = "tls")]
        {
            let roots = || tonic::transport::ClientTlsConfig::new().with_native_roots();
            let tls = self.tls.unwrap_or_else(roots);
            let with_tls = endpoints
                .into_iter()
                .map(|endpoint| endpoint.tls(tls.clone()));
            endpoints = with_tls.collect::<Result<_, _>>()?;
        }
        let credentials = match (self.bearer, self.bearer_file) {
            (None, None) => CredentialSource::None,
            (_, Some(path)) => CredentialSource::File(path),
            (Some(token), None) => CredentialSource::Fixed(Credential::new(&token)?),
        };
        let sends_token = credentials.current()?.is_some();
        if sends_token && !self.allow_insecure_token {
            endpoints
                .iter()
                .try_for_each(Endpoint::reject_exposed_token)?;
        }
        let owner = self.owner.unwrap_or_else(default_owner);
        if !(1..=256).contains(&owner.len()) {
            return Err(ConnectError::InvalidOwner);
        }
        let brokers = Arc::new(Endpoints {
            list: endpoints,
            credentials,
        });
        Ok(Client::new(ClientRuntime::connect(brokers).await?, owner))
    }
}

/// Omits secrets: the bearer token, and the private key that a TLS configuration may contain.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("endpoints", &self.endpoints)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

fn default_owner() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host}:{}", std::process::id())
}

/// Time for which a shutdown waits for responses of brokers.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
