//! The fixture of the matrix: two brokers that are called, one plain and one with TLS and client
//! certificates, and a third broker that acquires the locks that must stay hidden.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_proto::v1::{
    AcquireRequest, AcquireResponse, Lease, ListLocksRequest, ListLocksResponse, LockMode, LockRef,
    LockTarget, Owner,
};
use prost::Message as _;
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};
use tonic::{Status, transport::Endpoint};

use super::{
    command_recorder::CommandRecorder,
    connection::{ACQUIRE, LIST, RoleConnection},
    field_rules::LIMIT,
    raw_call::open_call,
    requests::{acquire_request, owner, target},
    roles::{CredentialKind, LOCK_GROUPS, LockGroup, Permission, Role, policy},
};
use crate::{
    access::files_and_callers::AccessFiles,
    broker::{
        process::{BrokerOptions, BrokerProcess},
        tls::BrokerTls,
    },
    redis::server::RedisServer,
    until::until,
};

/// TTL and wait of the held locks, longer than any test.
const HOLD_TIME: Duration = Duration::from_secs(600);
/// Number of rejected credentials per client address, half of the broker's rate limit.
const FAILURES_PER_ADDRESS_MAX: usize = 5;
const TOKEN_LIFETIME_S: i64 = 3_600;

/// A lock with a holder and a waiter.
#[derive(Debug, Clone)]
pub struct HeldLock {
    pub part: LockGroup,
    pub lock: LockRef,
    pub lease: Lease,
}

#[derive(Debug)]
pub struct MatrixFixture {
    /// The broker without TLS, for callers with tokens.
    pub plaintext_broker: BrokerProcess,
    /// The broker with TLS, for callers with certificates.
    pub mutual_tls_broker: BrokerProcess,
    /// Recorder of the commands that the two brokers send to Redis.
    pub recorder: CommandRecorder,
    /// One held lock in each part.
    pub held_locks: Vec<HeldLock>,
    /// Roles of the callers.
    pub roles: Vec<Role>,
    /// Files with rules and tokens.
    pub access_files: AccessFiles,
    _observer: BrokerProcess,
    unauthenticated_calls: AtomicUsize,
    /// Connections of each role, so that certificates are made only once.
    connections: Mutex<HashMap<String, RoleConnection>>,
    tls: BrokerTls,
    root_connection: RoleConnection,
    waiting_calls: JoinSet<Result<(), Status>>,
    _redis: RedisServer,
}

impl MatrixFixture {
    /// Starts the fixture with these roles, the first of which must have all permissions.
    pub async fn start(roles: Vec<Role>) -> Self {
        let redis = RedisServer::start().await;
        let mut recorder = CommandRecorder::start(redis.addr()).await;
        let tokens = roles
            .iter()
            .filter(|role| role.credential == CredentialKind::StaticToken);
        let tokens: Vec<_> = tokens
            .map(|role| (role.name.as_str(), static_token(role)))
            .collect();
        let tokens: Vec<_> = tokens
            .iter()
            .map(|(name, token)| (*name, token.as_str()))
            .collect();
        let access_files = AccessFiles::new(&policy(&roles), &tokens);
        let tls = BrokerTls::create(true);
        let mut options = access_files.options(redis.url());
        options
            .env
            .push(("LEASEHOLD__LIMITS__TTL_MAX".to_owned(), "10m".to_owned()));
        let mut encrypted: BrokerOptions = tls.options(redis.url());
        encrypted.env.extend(options.env.iter().cloned());
        options.init_store().await;
        let plain = BrokerProcess::start(&options).await;
        let certified = BrokerProcess::start(&encrypted).await;
        let root = connection_to((plain.addr(), plain.admin()), &roles[0]);
        warm_up(&root).await;
        let known = recorder.connections().await;
        let aside = BrokerProcess::start(&options).await;
        let root = connection_to((aside.addr(), aside.admin()), &roles[0]);
        let mut fixture = Self {
            plaintext_broker: plain,
            mutual_tls_broker: certified,
            recorder,
            held_locks: Vec::new(),
            roles,
            access_files,
            _observer: aside,
            unauthenticated_calls: AtomicUsize::default(),
            connections: Mutex::default(),
            tls,
            root_connection: root,
            waiting_calls: JoinSet::new(),
            _redis: redis,
        };
        for part in LOCK_GROUPS {
            let held = fixture.hold_lock(part).await;
            fixture.held_locks.push(held);
        }
        fixture.recorder.ignore_opened_after(&known).await;
        fixture.recorder.take_commands().await;
        fixture
    }

    /// Returns the connection of a role.
    #[must_use]
    pub fn connection_of(&self, role: &Role) -> RoleConnection {
        let mut lines = self.connections.lock().expect("no thread panicked");
        if role.is_authenticated() {
            let line = lines.entry(role.name.clone());
            return line.or_insert_with(|| self.new_connection(role)).clone();
        }
        let number =
            self.unauthenticated_calls.fetch_add(1, Ordering::Relaxed) / FAILURES_PER_ADDRESS_MAX;
        let line = lines.entry(format!("{} {number}", role.name));
        line.or_insert_with(|| self.connection_from(role, number))
            .clone()
    }

    /// Returns a connection with all permissions to the third broker.
    #[must_use]
    pub fn observer(&self) -> &RoleConnection {
        &self.root_connection
    }

    /// Returns the held lock of a part.
    #[must_use]
    pub fn held_in(&self, part: LockGroup) -> &HeldLock {
        let mut held = self.held_locks.iter();
        held.find(|held| held.part == part)
            .expect("one in each part")
    }

    /// Returns the state of a lock as text, without the remaining times.
    pub async fn lock_state(&self, lock: &LockRef) -> String {
        let Ok(mut lock) = self.root_connection.get_lock(lock).await else {
            return "it is not held".to_owned();
        };
        for holder in lock.holders.iter_mut().chain(&mut lock.waiters) {
            holder.remaining = None;
        }
        format!("{lock:?}")
    }

    /// Returns the texts that no reply to a role may contain, except the name of the lock in its
    /// own request.
    #[must_use]
    pub fn hidden_texts(&self, role: &Role, named: Option<&LockRef>) -> Vec<String> {
        let mut hidden = Vec::new();
        for held in &self.held_locks {
            hidden.push(held.lease.lease_token.clone());
            if role.has_permission(Permission::Observe, held.part) {
                continue;
            }
            hidden.extend(canaries(held.part));
            hidden.push(held.lease.lease_id.clone());
            let is_named = named.is_some_and(|named| named.name == held.lock.name);
            if !is_named && !role.has_permission(Permission::List, held.part) {
                hidden.push(held.lock.name.clone());
            }
        }
        hidden
    }

    async fn hold_lock(&mut self, part: LockGroup) -> HeldLock {
        let lock = part.lock(&format!("canary-held-{part:?}"));
        let of = |what: &str| Owner {
            labels: [(
                format!("canary-key-{part:?}"),
                format!("canary-value-{part:?}"),
            )]
            .into(),
            reason: format!("canary-reason-{part:?}"),
            id: format!("canary-{what}-{part:?}"),
        };
        let semaphore = LockTarget {
            mode: LockMode::Semaphore.into(),
            limit: i32::try_from(LIMIT).expect("a small number"),
            ..target(&lock)
        };
        let long = HOLD_TIME.try_into().ok();
        let request = AcquireRequest {
            ttl: long,
            ..acquire_request(semaphore.clone(), of("owner"))
        };
        let taken: Result<AcquireResponse, _> = self.root_connection.call(ACQUIRE, &request).await;
        let lease = taken.expect("it is free").lease;
        let waits = AcquireRequest {
            wait_timeout: long,
            ..acquire_request(semaphore, of("waiter"))
        };
        let line = self.root_connection.clone();
        self.waiting_calls.spawn(async move {
            let shown = line.authorization.as_deref();
            let (requests, outgoing) = mpsc::channel(1);
            requests
                .send(waits.encode_to_vec())
                .await
                .expect("there is room");
            drop(requests);
            // The call waits until the test ends, which drops it.
            open_call(&line.api, ACQUIRE, shown, outgoing)
                .await
                .map(drop)
        });
        until("a caller waits", async || {
            let state = self.lock_state(&lock).await;
            state.contains("queue_length: 1").then_some(())
        })
        .await;
        HeldLock {
            part,
            lock,
            lease: lease.expect("a grant has a lease"),
        }
    }

    /// Returns a connection from a separate address for each [`FAILURES_PER_ADDRESS_MAX`] calls, so
    /// that no call is rate-limited for wrong credentials.
    fn connection_from(&self, role: &Role, number: usize) -> RoleConnection {
        let number = u8::try_from(number).expect("not more addresses");
        let from = Ipv4Addr::new(127, 1, 0, number);
        let to = |address: SocketAddr| {
            let endpoint = endpoint(address).local_address(Some(from.into()));
            endpoint.connect_lazy()
        };
        RoleConnection {
            api: to(self.plaintext_broker.addr()),
            admin: to(self.plaintext_broker.admin()),
            ..connection_to(
                (self.plaintext_broker.addr(), self.plaintext_broker.admin()),
                role,
            )
        }
    }

    fn new_connection(&self, role: &Role) -> RoleConnection {
        if role.credential != CredentialKind::ClientCertificate {
            let mut line = connection_to(
                (self.plaintext_broker.addr(), self.plaintext_broker.admin()),
                role,
            );
            if role.credential == CredentialKind::SignedToken {
                let token = self
                    .access_files
                    .issuer
                    .token(&role.name, TOKEN_LIFETIME_S, json!({}));
                line.authorization = Some(format!("Bearer {token}"));
            }
            return line;
        }
        let clients = self
            .tls
            .client_authority
            .as_ref()
            .expect("they need certificates");
        let signed = clients.client(&role.name);
        let to = |address: SocketAddr| {
            let endpoint = Endpoint::from_shared(format!("https://{address}"));
            let trust = self.tls.sdk_client_config(Some(&signed));
            let endpoint = endpoint.expect("an address").tls_config(trust);
            endpoint.expect("certificates").connect_lazy()
        };
        RoleConnection {
            api: to(self.mutual_tls_broker.addr()),
            admin: to(self.mutual_tls_broker.admin()),
            authorization: None,
        }
    }
}

/// Returns texts that would reveal the holder or the waiter of the held lock of a part.
#[must_use]
pub fn canaries(part: LockGroup) -> Vec<String> {
    let kinds = ["owner", "reason", "key", "value", "waiter"];
    kinds.map(|kind| format!("canary-{kind}-{part:?}")).to_vec()
}

fn static_token(role: &Role) -> String {
    format!("the-token-of-{}", role.name)
}

fn connection_to((api, admin): (SocketAddr, SocketAddr), role: &Role) -> RoleConnection {
    RoleConnection {
        api: endpoint(api).connect_lazy(),
        admin: endpoint(admin).connect_lazy(),
        authorization: match role.credential {
            CredentialKind::Absent
            | CredentialKind::ClientCertificate
            | CredentialKind::SignedToken => None,
            CredentialKind::UnknownToken => Some("Bearer the-token-of-nobody".to_owned()),
            CredentialKind::StaticToken => Some(format!("Bearer {}", static_token(role))),
        },
    }
}

/// Returns an endpoint without keepalive, because a busy machine replies late.
fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address")
}

/// Makes a broker open every connection to Redis that calls need.
async fn warm_up(root: &RoleConnection) {
    let request = AcquireRequest {
        ttl: HOLD_TIME.try_into().ok(),
        ..acquire_request(target(&LockGroup::Open.lock("warm-up")), owner("warm-up"))
    };
    let taken: Result<AcquireResponse, _> = root.call(ACQUIRE, &request).await;
    assert!(taken.expect("it is free").lease.is_some());
    let list = ListLocksRequest::default();
    let listed: Result<ListLocksResponse, _> = root.call(LIST, &list).await;
    assert_eq!(listed.expect("root may").locks.len(), 1);
}
