//! Cost of authentication: TLS, and mTLS with a token, rules and quotas, compared with a bare
//! broker.

use std::{collections::BTreeMap, fmt};

use leasehold_proto::v1::{LockTarget, lock_service_client::LockServiceClient};
use leasehold_tests::{
    access::files_and_callers::{AccessFiles, BearerTokenInterceptor},
    broker::{
        process::{BrokerOptions, BrokerProcess},
        tls::BrokerTls,
    },
    redis::server::RedisServer,
};
use serde_json::json;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};

use crate::{
    grpc::{CHANNELS, acquire_request, lock_name, named},
    pairs::{self, Pair, Sample},
    report::{machine, median, median_ratio, ms},
};

const CALLERS: [usize; 2] = [1, 64];
/// Number of rules of other callers, as in a deployment with one rule for each team.
const OTHER_RULES: usize = 50;
const DAY_S: i64 = 86_400;

/// Access configuration of a broker, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AccessMode {
    Open,
    Tls,
    /// mTLS, a signed token for every call, a policy, and quotas that are never reached.
    Guarded,
}

/// Results of the rounds, displayed as a table.
pub(crate) struct Access {
    rounds: usize,
    pairs: BTreeMap<(usize, AccessMode), Vec<Sample>>,
}

/// A broker, and open connections of its callers.
struct Fixture {
    channels: Vec<Channel>,
    shows: BearerTokenInterceptor,
    _broker: BrokerProcess,
}

struct Caller {
    locks: LockServiceClient<InterceptedService<Channel, BearerTokenInterceptor>>,
    target: LockTarget,
}

impl Pair for Caller {
    async fn pair(&mut self) {
        let taken = self.locks.acquire(acquire_request(self.target.clone()));
        let lease = taken.await.expect("the lock is free").into_inner().lease;
        let release = leasehold_proto::v1::ReleaseRequest {
            lease,
            ..Default::default()
        };
        self.locks.release(release).await.expect("a holder can");
    }
}

impl Fixture {
    async fn start(
        options: &BrokerOptions,
        tls: Option<&BrokerTls>,
        token: Option<String>,
    ) -> Self {
        let broker = BrokerProcess::start(options).await;
        let client = tls.and_then(|tls| Some(tls.client_authority.as_ref()?.client("bench")));
        let connect = || {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let endpoint = Endpoint::from_shared(format!("{scheme}://{}", broker.addr()));
            let endpoint = endpoint.expect("an address").tcp_nodelay(true);
            match tls {
                None => endpoint.connect_lazy(),
                Some(tls) => endpoint
                    .tls_config(tls.sdk_client_config(client.as_ref()))
                    .expect("certificates")
                    .connect_lazy(),
            }
        };
        Self {
            channels: (0..CHANNELS).map(|_| connect()).collect(),
            shows: BearerTokenInterceptor(token),
            _broker: broker,
        }
    }

    async fn pairs(&self, callers: usize) -> Sample {
        let channel = |at: usize| self.channels[at % self.channels.len()].clone();
        let caller = |at| Caller {
            locks: LockServiceClient::with_interceptor(channel(at), self.shows.clone()),
            target: named(&lock_name(at)),
        };
        pairs::run((0..callers).map(caller).collect()).await
    }
}

/// Measures in interleaved rounds that begin with different configurations. Each broker has its own
/// Redis.
pub(crate) async fn measure(rounds: usize) -> Access {
    let redis = [
        RedisServer::start().await,
        RedisServer::start().await,
        RedisServer::start().await,
    ];
    let [open_redis, tls_redis, guarded_redis] = &redis;
    let open = BrokerOptions::for_store(open_redis.url());
    let (tls, mutual) = (BrokerTls::create(false), BrokerTls::create(true));
    let encrypted = tls.options(tls_redis.url());
    let doors = AccessFiles::new(&policy(), &[]);
    let mut guarded = mutual.options(guarded_redis.url());
    guarded.env.extend(doors.settings());
    let rate = ("LEASEHOLD__QUOTAS__ACQUIRES_PER_SECOND", "1000000");
    guarded.env.push((rate.0.to_owned(), rate.1.to_owned()));
    for options in [&open, &encrypted, &guarded] {
        options.init_store().await;
    }
    let token = doors.issuer.token("bench", DAY_S, json!({}));
    let mut sites = vec![
        (AccessMode::Open, Fixture::start(&open, None, None).await),
        (
            AccessMode::Tls,
            Fixture::start(&encrypted, Some(&tls), None).await,
        ),
        (
            AccessMode::Guarded,
            Fixture::start(&guarded, Some(&mutual), Some(token)).await,
        ),
    ];
    let mut pairs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for _ in 0..rounds {
        for (door, site) in &sites {
            for callers in CALLERS {
                let sample = site.pairs(callers).await;
                pairs.entry((callers, *door)).or_default().push(sample);
            }
        }
        sites.rotate_left(1);
    }
    Access { rounds, pairs }
}

/// Returns a policy whose last rule applies to the caller.
fn policy() -> String {
    let rule = |caller: &str| {
        format!(
            "[[rule]]\ncallers = [\"{caller}\"]\nverbs = [\"acquire\"]\nnames = [\"bench/*\"]\n"
        )
    };
    let others: String = (0..OTHER_RULES)
        .map(|number| rule(&format!("jwt:team-{number}")))
        .collect();
    others + &rule("jwt:bench")
}

impl AccessMode {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "bare",
            Self::Tls => "TLS",
            Self::Guarded => "mTLS, JWT, 51 rules, quotas",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", machine())?;
        writeln!(
            f,
            "Medians of {} interleaved rounds, of the ratios too; pairs on connections that are open; a Redis for each broker.\n",
            self.rounds
        )?;
        writeln!(
            f,
            "| {:28} | {:>7} | {:>8} | {:>7} | {:>7} | {:>6} |",
            "what", "callers", "per s", "p50 ms", "p99 ms", "÷ bare"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|")?;
        for (&(callers, door), rounds) in &self.pairs {
            let sample = median(rounds);
            let ratio = median_ratio(rounds, &self.pairs[&(callers, AccessMode::Open)]);
            writeln!(
                f,
                "| {:28} | {callers:>7} | {:>8.0} | {:>7} | {:>7} | {ratio:>6.2} |",
                door.name(),
                sample.per_second,
                ms(sample.p50),
                ms(sample.p99),
            )?;
        }
        Ok(())
    }
}
