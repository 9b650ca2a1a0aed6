//! A client of Leasehold: one for each process.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use leasehold_proto::v1::Owner;

use crate::{
    core::Core,
    election::Election,
    endpoint::{self, Brokers, Credential, Endpoint, Source},
    error::ConnectError,
    lock::Lock,
    target::Target,
};

/// Makes locks. Cheap to clone; one is enough for a process.
///
/// A client runs a thread of its own that keeps its leases alive, so nothing that the program does
/// can hold heartbeats up, and its futures run on any executor. The thread ends with the last clone
/// and the last guard.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
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
    /// Connects to the first of the `endpoints` that answers: URLs, separated by commas, as in
    /// `http://a:7070,http://b:7070`. The others are for when it does not any more.
    pub async fn connect(endpoints: &str) -> Result<Self, ConnectError> {
        Self::builder(endpoints).connect().await
    }

    /// The same with more settings.
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

    /// A lock, by its name or as a [`Target`].
    pub fn lock(&self, target: impl Into<Target>) -> Lock {
        Lock::new(self, vec![target.into()])
    }

    /// 2-16 different locks, taken all or none under one lease, in an order that cannot deadlock.
    pub fn lock_all<T: Into<Target>>(&self, targets: impl IntoIterator<Item = T>) -> Lock {
        Lock::new(self, targets.into_iter().map(Into::into).collect())
    }

    /// The election of one leader for a job.
    pub fn elect(&self, job: impl Into<Target>) -> Election {
        Election::new(self, job.into())
    }

    /// Gives up every wait, releases every lease, and ends the client with all its clones: their
    /// calls fail from now on, and guards that are left have lost their locks. Takes at most 2 s;
    /// what could not be released by then runs out by itself. Call it before the process ends: then
    /// the next in line need not wait for that.
    pub async fn shutdown(self) {
        self.core.shutdown().await;
    }

    pub(crate) fn new(core: Arc<Core>, owner: String) -> Self {
        let owner = Arc::new(Owner {
            id: owner,
            ..Owner::default()
        });
        Self { core, owner }
    }
}

impl Builder {
    /// The name of this process, shown to people who find a lock held. Default: host name and
    /// process id.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Shown to the broker as bearer token.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer = Some(token.into());
        self
    }

    /// The same from a file, which is looked at every second: when it has another token, that is
    /// shown to the brokers, so that locks outlive the token that they were taken with. White space
    /// around the token does not count.
    pub fn bearer_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.bearer_file = Some(path.into());
        self
    }

    /// Lets the bearer token go unencrypted to endpoints that are not https and not of this machine
    /// (127.0.0.0/8, `::1` and `localhost`): only where the network itself is trusted. Without it such an
    /// endpoint is refused ([`ConnectError::InsecureToken`]).
    pub fn allow_insecure_token(mut self, allow: bool) -> Self {
        self.allow_insecure_token = allow;
        self
    }

    /// How https endpoints are trusted, and a certificate of this client's own. Default: the root
    /// certificates of the machine; a configuration trusts only what it names, and these with
    /// `with_native_roots`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: tonic::transport::ClientTlsConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects to the first endpoint that answers within two seconds.
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
            let with_tls = endpoints.into_iter().map(|one| one.tls(tls.clone()));
            endpoints = with_tls.collect::<Result<_, _>>()?;
        }
        let source = match (self.bearer, self.bearer_file) {
            (None, None) => Source::Nowhere,
            (_, Some(path)) => Source::File(path),
            (Some(token), None) => Source::Fixed(Credential::new(&token)?),
        };
        let shows_token = source.now()?.is_some();
        if shows_token && !self.allow_insecure_token {
            endpoints
                .iter()
                .try_for_each(Endpoint::refuse_exposed_token)?;
        }
        let owner = self.owner.unwrap_or_else(this_process);
        if !(1..=256).contains(&owner.len()) {
            return Err(ConnectError::InvalidOwner);
        }
        let brokers = Arc::new(Brokers { endpoints, source });
        Ok(Client::new(Core::connect(brokers).await?, owner))
    }
}

/// Without secrets: the bearer token, and the private key that a TLS configuration may have.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("endpoints", &self.endpoints)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

fn this_process() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host}:{}", std::process::id())
}

/// How long a shutdown waits for brokers.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
