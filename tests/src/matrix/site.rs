//! Two brokers that are called, plainly and by TLS with certificates, and one beside them by which the
//! locks are held that they must not tell about.

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
    ask::{acquire, owner, target},
    line::{ACQUIRE, LIST, Line},
    overheard::Overheard,
    roles::{PARTS, Part, Role, Shows, Verb, policy},
    rules::LIMIT,
    wire::open,
};
use crate::{
    broker_process::{BrokerOptions, BrokerProcess},
    broker_tls::BrokerTls,
    callers::Doors,
    redis_server::RedisServer,
    until::until,
};

/// Locks are held, and waited for, longer than any test lasts.
const LONG: Duration = Duration::from_secs(600);
/// A broker bears twice as many at once.
const FAILURES_MOST: usize = 5;
const SIGNED_FOR_S: i64 = 3_600;

/// A lock that somebody holds and somebody waits for.
#[derive(Debug, Clone)]
pub struct Held {
    /// Where it belongs.
    pub part: Part,
    /// Which.
    pub lock: LockRef,
    /// By which lease.
    pub lease: Lease,
}

/// The brokers, and what is held.
#[derive(Debug)]
pub struct Site {
    /// Plain TCP: tokens.
    pub plain: BrokerProcess,
    /// TLS: certificates.
    pub certified: BrokerProcess,
    /// What the two send to Redis.
    pub overheard: Overheard,
    /// One lock in each part.
    pub held: Vec<Held>,
    /// Who calls.
    pub roles: Vec<Role>,
    /// Files of rules.
    pub doors: Doors,
    _aside: BrokerProcess,
    strangers: AtomicUsize,
    /// Certificates are made once.
    lines: Mutex<HashMap<String, Line>>,
    tls: BrokerTls,
    root: Line,
    waits: JoinSet<Result<(), Status>>,
    _redis: RedisServer,
}

impl Site {
    /// With these roles, the first of which may do everything.
    pub async fn start(roles: Vec<Role>) -> Self {
        let redis = RedisServer::start().await;
        let mut overheard = Overheard::start(redis.addr()).await;
        let tokens = roles.iter().filter(|role| role.shows == Shows::Token);
        let tokens: Vec<_> = tokens
            .map(|role| (role.name.as_str(), secret(role)))
            .collect();
        let tokens: Vec<_> = tokens
            .iter()
            .map(|(name, token)| (*name, token.as_str()))
            .collect();
        let doors = Doors::new(&policy(&roles), &tokens);
        let tls = BrokerTls::create(true);
        let mut options = doors.options(redis.url());
        options
            .env
            .push(("LEASEHOLD__LIMITS__TTL_MAX".to_owned(), "10m".to_owned()));
        let mut encrypted: BrokerOptions = tls.options(redis.url());
        encrypted.env.extend(options.env.iter().cloned());
        options.init_store().await;
        let plain = BrokerProcess::start(&options).await;
        let certified = BrokerProcess::start(&encrypted).await;
        let root = line_to((plain.addr(), plain.admin()), &roles[0]);
        warm(&root).await;
        let known = overheard.connections().await;
        let aside = BrokerProcess::start(&options).await;
        let root = line_to((aside.addr(), aside.admin()), &roles[0]);
        let mut site = Self {
            plain,
            certified,
            overheard,
            held: Vec::new(),
            roles,
            doors,
            _aside: aside,
            strangers: AtomicUsize::default(),
            lines: Mutex::default(),
            tls,
            root,
            waits: JoinSet::new(),
            _redis: redis,
        };
        for part in PARTS {
            let held = site.hold(part).await;
            site.held.push(held);
        }
        site.overheard.ignore_those_after(&known).await;
        site.overheard.commands().await;
        site
    }

    /// How a role calls.
    #[must_use]
    pub fn line(&self, role: &Role) -> Line {
        let mut lines = self.lines.lock().expect("nobody panicked");
        if role.is_known() {
            let line = lines.entry(role.name.clone());
            return line.or_insert_with(|| self.new_line(role)).clone();
        }
        let number = self.strangers.fetch_add(1, Ordering::Relaxed) / FAILURES_MOST;
        let line = lines.entry(format!("{} {number}", role.name));
        line.or_insert_with(|| self.line_from(role, number)).clone()
    }

    /// Who may do everything, at the broker beside.
    #[must_use]
    pub fn aside(&self) -> &Line {
        &self.root
    }

    /// The lock of a part that is held.
    #[must_use]
    pub fn held_in(&self, part: Part) -> &Held {
        let mut held = self.held.iter();
        held.find(|held| held.part == part)
            .expect("one in each part")
    }

    /// A lock as its records are, without the times that pass.
    pub async fn state(&self, lock: &LockRef) -> String {
        let Ok(mut lock) = self.root.look(lock).await else {
            return "nobody holds it".to_owned();
        };
        for holder in lock.holders.iter_mut().chain(&mut lock.waiters) {
            holder.remaining = None;
        }
        format!("{lock:?}")
    }

    /// What a role must not be told, whatever it asks, unless it is the lock that it names itself.
    #[must_use]
    pub fn hidden(&self, role: &Role, named: Option<&LockRef>) -> Vec<String> {
        let mut hidden = Vec::new();
        for held in &self.held {
            hidden.push(held.lease.lease_token.clone());
            if role.may(Verb::Observe, held.part) {
                continue;
            }
            hidden.extend(canaries(held.part));
            hidden.push(held.lease.lease_id.clone());
            let is_named = named.is_some_and(|named| named.name == held.lock.name);
            if !is_named && !role.may(Verb::List, held.part) {
                hidden.push(held.lock.name.clone());
            }
        }
        hidden
    }

    async fn hold(&mut self, part: Part) -> Held {
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
        let long = LONG.try_into().ok();
        let request = AcquireRequest {
            ttl: long,
            ..acquire(semaphore.clone(), of("owner"))
        };
        let taken: Result<AcquireResponse, _> = self.root.call(ACQUIRE, &request).await;
        let lease = taken.expect("it is free").lease;
        let waits = AcquireRequest {
            wait_timeout: long,
            ..acquire(semaphore, of("waiter"))
        };
        let line = self.root.clone();
        self.waits.spawn(async move {
            let shown = line.authorization.as_deref();
            let (asks, asked) = mpsc::channel(1);
            asks.send(waits.encode_to_vec())
                .await
                .expect("there is room");
            drop(asks);
            // Dropped with the test: it waits until then.
            open(&line.api, ACQUIRE, shown, asked).await.map(drop)
        });
        until("somebody waits", async || {
            let state = self.state(&lock).await;
            state.contains("queue_length: 1").then_some(())
        })
        .await;
        Held {
            part,
            lock,
            lease: lease.expect("a grant has a lease"),
        }
    }

    /// Nobody is told to wait for so few wrong credentials from one address.
    fn line_from(&self, role: &Role, number: usize) -> Line {
        let number = u8::try_from(number).expect("not more addresses");
        let from = Ipv4Addr::new(127, 1, 0, number);
        let to = |address: SocketAddr| {
            let endpoint = endpoint(address).local_address(Some(from.into()));
            endpoint.connect_lazy()
        };
        Line {
            api: to(self.plain.addr()),
            admin: to(self.plain.admin()),
            ..line_to((self.plain.addr(), self.plain.admin()), role)
        }
    }

    fn new_line(&self, role: &Role) -> Line {
        if role.shows != Shows::Certificate {
            let mut line = line_to((self.plain.addr(), self.plain.admin()), role);
            if role.shows == Shows::Signed {
                let token = self.doors.issuer.token(&role.name, SIGNED_FOR_S, json!({}));
                line.authorization = Some(format!("Bearer {token}"));
            }
            return line;
        }
        let clients = self.tls.clients.as_ref().expect("they need certificates");
        let signed = clients.client(&role.name);
        let to = |address: SocketAddr| {
            let endpoint = Endpoint::from_shared(format!("https://{address}"));
            let trust = self.tls.trust(Some(&signed));
            let endpoint = endpoint.expect("an address").tls_config(trust);
            endpoint.expect("certificates").connect_lazy()
        };
        Line {
            api: to(self.certified.addr()),
            admin: to(self.certified.admin()),
            authorization: None,
        }
    }
}

/// What tells of the holder of the lock of a part that is held, and of who waits for it.
#[must_use]
pub fn canaries(part: Part) -> Vec<String> {
    let kinds = ["owner", "reason", "key", "value", "waiter"];
    kinds.map(|kind| format!("canary-{kind}-{part:?}")).to_vec()
}

fn secret(role: &Role) -> String {
    format!("the-token-of-{}", role.name)
}

fn line_to((api, admin): (SocketAddr, SocketAddr), role: &Role) -> Line {
    Line {
        api: endpoint(api).connect_lazy(),
        admin: endpoint(admin).connect_lazy(),
        authorization: match role.shows {
            Shows::Nothing | Shows::Certificate | Shows::Signed => None,
            Shows::Nonsense => Some("Bearer the-token-of-nobody".to_owned()),
            Shows::Token => Some(format!("Bearer {}", secret(role))),
        },
    }
}

/// Asks for no signs of life: a machine that is busy gives them late.
fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address")
}

/// Has a broker open every connection to Redis that it opens for callers.
async fn warm(root: &Line) {
    let request = AcquireRequest {
        ttl: LONG.try_into().ok(),
        ..acquire(target(&Part::Open.lock("warm-up")), owner("warm-up"))
    };
    let taken: Result<AcquireResponse, _> = root.call(ACQUIRE, &request).await;
    assert!(taken.expect("it is free").lease.is_some());
    let list = ListLocksRequest::default();
    let listed: Result<ListLocksResponse, _> = root.call(LIST, &list).await;
    assert_eq!(listed.expect("root may").locks.len(), 1);
}
