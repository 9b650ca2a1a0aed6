//! Verification, from the text of INFO, that a server process may keep locks.

use std::collections::HashMap;

use super::{
    connection::{Endpoint, RedisConfig},
    era::ServerIdentity,
};

const MAJOR_MIN: u64 = 7;

/// The fields of the INFO reply of a server.
pub(super) struct ServerInfo<'a> {
    fields: HashMap<&'a str, &'a str>,
}

/// The problems of a server, in plain sentences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Reasons why the server must not keep locks.
    pub(super) problems: Vec<String>,
    /// Warnings for the operator of a server that may keep locks.
    pub(super) warnings: Vec<String>,
    /// True if the broker's user may not read the server's settings.
    pub(super) hides_settings: bool,
    /// True if a single problem may be temporary: another server, or the same server later, may be
    /// suitable.
    pub(super) is_transient: bool,
}

impl<'a> ServerInfo<'a> {
    /// Parses the reply of INFO.
    pub(super) fn parse(text: &'a str) -> Self {
        let fields = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.trim_end().split_once(':'))
            .collect();
        Self { fields }
    }

    /// Returns the identity of the process and its data; `None` if INFO hides it.
    pub(super) fn identity(&self) -> Option<ServerIdentity> {
        self.identity_of(self.run_id()?)
    }

    /// Returns the identity of a process whose run id is known.
    pub(super) fn identity_of(&self, run_id: &str) -> Option<ServerIdentity> {
        Some(ServerIdentity {
            run_id: run_id.to_owned(),
            replid: self.get("master_replid")?.to_owned(),
            replid2: self.get("master_replid2")?.to_owned(),
        })
    }

    /// Returns the run id of the process.
    pub(super) fn run_id(&self) -> Option<&'a str> {
        self.get("run_id")
    }

    /// Returns true if the server is a master.
    pub(super) fn is_master(&self) -> bool {
        self.get("role") == Some("master")
    }

    /// Checks all properties. With `allow_unsafe` a server that evicts keys or is too old only gets
    /// a warning.
    pub(super) fn check(&self, endpoint: &Endpoint) -> Findings {
        let (address, config) = (endpoint.name(), &endpoint.config);
        let mut findings = Findings {
            is_transient: self.get("loading") == Some("1")
                || config.location.is_cluster() && !self.is_master(),
            ..Findings::default()
        };
        self.require(&address, config, &mut findings.problems);
        let risky = if config.allow_unsafe {
            &mut findings.warnings
        } else {
            &mut findings.problems
        };
        self.recommend(&address, risky);
        self.optional(&address, &mut findings.warnings);
        findings
    }

    fn require(&self, address: &str, config: &RedisConfig, problems: &mut Vec<String>) {
        if self.identity().is_none() {
            problems.push(format!(
                "{address} does not report its run_id and master_replid in INFO: a restart could \
                 not be detected. Allow INFO for the broker's user, or use a server that reports \
                 them."
            ));
        }
        if !self.is_master() {
            problems.push(format!(
                "{address} is a {}, not a master: it rejects writes. {}.",
                self.get("role").unwrap_or("server of unknown role"),
                match config.location.is_cluster() {
                    true => "Its slots have another master",
                    false => "Configure the address of the master",
                }
            ));
        }
        match (self.get("cluster_enabled"), config.location.is_cluster()) {
            (Some("1"), false) => problems.push(format!(
                "{address} runs in cluster mode, where it stores only some of the locks. Use \
                 redis-cluster://, or a server with cluster-enabled no."
            )),
            (Some("1"), true) | (_, false) => {}
            (_, true) => problems.push(format!(
                "{address} does not run in cluster mode. Use redis://, or a server with \
                 cluster-enabled yes."
            )),
        }
        if self.get("loading") == Some("1") {
            problems.push(format!(
                "{address} is loading its data. Wait until it is ready, or use --wait-for-store."
            ));
        }
    }

    fn recommend(&self, address: &str, problems: &mut Vec<String>) {
        let version = self.get("redis_version").unwrap_or("unknown");
        let major = version
            .split('.')
            .next()
            .and_then(|m| m.parse::<u64>().ok());
        if major.is_none_or(|major| major < MAJOR_MIN) {
            problems.push(format!(
                "{address} has version {version}: the scripts need 7.0.0 or newer. Upgrade it, or \
                 start with --allow-unsafe-redis."
            ));
        }
        match (self.get("maxmemory"), self.get("maxmemory_policy")) {
            (Some("0"), _) | (Some(_), Some("noeviction")) => {}
            (Some(_), Some(policy)) => problems.push(format!(
                "{address} evicts keys under memory pressure (maxmemory-policy {policy}): it could \
                 drop locks that are held. Set maxmemory-policy noeviction, or start with \
                 --allow-unsafe-redis."
            )),
            _ => problems.push(format!(
                "{address} does not report its maxmemory in INFO: it could evict locks that are \
                 held. Set maxmemory-policy noeviction and let the broker's user read INFO, or \
                 start with --allow-unsafe-redis."
            )),
        }
    }

    /// Returns the policy by which the server evicts keys, if it does.
    pub(super) fn check_eviction(&self) -> Option<&'a str> {
        match (self.get("maxmemory"), self.get("maxmemory_policy")) {
            (Some("0") | None, _) | (_, None | Some("noeviction")) => None,
            (Some(_), Some(policy)) => Some(policy),
        }
    }

    /// Returns the number of connected replicas.
    pub(super) fn replica_count(&self) -> usize {
        let count = self.get("connected_slaves").map(str::parse);
        count.and_then(Result::ok).unwrap_or(0)
    }

    /// Returns true if another server may replace this one.
    pub(super) fn has_replacement(&self, config: &RedisConfig) -> bool {
        self.replica_count() > 0 || config.location.is_replicated()
    }

    fn optional(&self, address: &str, warnings: &mut Vec<String>) {
        if self.get("aof_enabled") == Some("0") {
            warnings.push(format!(
                "{address} has no append-only file: a restart loses the locks, and the broker then \
                 grants no new locks until the longest lease has expired. Set appendonly yes to \
                 keep the locks."
            ));
        }
    }

    fn get(&self, field: &str) -> Option<&'a str> {
        self.fields.get(field).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            credentials::Credentials,
            location::{Address, Sentinel, StoreLocation},
        },
        *,
    };

    const FIT: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n# Memory\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\nloading:0\r\naof_enabled:1\r\nrole:master\r\n\
        connected_slaves:0\r\nmaster_replid:def\r\nmaster_replid2:000\r\ncluster_enabled:0\r\n";

    fn endpoint(allow_unsafe: bool) -> Endpoint {
        let (host, port) = ("host".to_owned(), 1);
        let address = Address { host, port };
        let config = RedisConfig {
            allow_unsafe,
            ..RedisConfig::at(StoreLocation::Server(address.clone()))
        };
        Endpoint { address, config }
    }

    fn check(from: &str, to: &str, allow_unsafe: bool) -> Findings {
        ServerInfo::parse(&FIT.replace(from, to)).check(&endpoint(allow_unsafe))
    }

    #[test]
    fn a_fit_server_passes() {
        assert_eq!(check("", "", false), Findings::default());
        assert_eq!(
            ServerInfo::parse(FIT).identity(),
            Some(ServerIdentity {
                run_id: "abc".into(),
                replid: "def".into(),
                replid2: "000".into()
            })
        );
    }

    #[test]
    fn each_unfitness_is_one_sentence() {
        for (from, to, expected, unsafe_passes) in [
            ("role:master", "role:slave", "not a master", false),
            (
                "cluster_enabled:0",
                "cluster_enabled:1",
                "cluster mode",
                false,
            ),
            ("loading:0", "loading:1", "loading", false),
            ("run_id:abc\r\n", "", "run_id", false),
            ("7.0.15", "6.2.14", "version 6.2.14", true),
            ("maxmemory:0\r\n", "", "maxmemory in INFO", true),
        ] {
            let findings = check(from, to, false);
            assert_eq!(findings.problems.len(), 1, "{findings:?}");
            assert!(findings.problems[0].contains(expected), "{findings:?}");
            let allowed = check(from, to, true);
            assert_eq!(allowed.problems.is_empty(), unsafe_passes, "{allowed:?}");
        }
    }

    #[test]
    fn an_evicting_server_is_unfit_only_with_a_memory_limit() {
        let evicts = check("noeviction", "allkeys-lru", false);
        assert_eq!(evicts, Findings::default());
        let limited = FIT
            .replace("maxmemory:0", "maxmemory:100000000")
            .replace("noeviction", "allkeys-lru");
        let findings = ServerInfo::parse(&limited).check(&endpoint(false));
        assert!(findings.problems[0].contains("allkeys-lru"), "{findings:?}");
        let allowed = ServerInfo::parse(&limited).check(&endpoint(true));
        assert!(allowed.problems.is_empty() && allowed.warnings.len() == 1);
    }

    #[test]
    fn a_server_with_replicas_or_sentinels_may_be_replaced() {
        let mut config = endpoint(false).config;
        let replicated = FIT.replace("connected_slaves:0", "connected_slaves:2");
        assert_eq!(ServerInfo::parse(&replicated).replica_count(), 2);
        assert!(ServerInfo::parse(&replicated).has_replacement(&config));
        assert!(!ServerInfo::parse(FIT).has_replacement(&config));
        config.location = StoreLocation::Sentinel(Sentinel {
            addresses: Vec::new(),
            master: "orders".to_owned(),
            credentials: Credentials::default(),
        });
        assert!(ServerInfo::parse(FIT).has_replacement(&config));
    }

    #[test]
    fn in_a_cluster_only_its_masters_are_fit() {
        let mut endpoint = endpoint(false);
        endpoint.config.location = StoreLocation::Cluster(Vec::new());
        let standalone = ServerInfo::parse(FIT).check(&endpoint);
        assert!(standalone.problems[0].contains("does not run in cluster mode"));
        let member = FIT.replace("cluster_enabled:0", "cluster_enabled:1");
        let fit = ServerInfo::parse(&member).check(&endpoint);
        assert!(fit.problems.is_empty() && !fit.is_transient);
        let replica = member.replace("role:master", "role:slave");
        let replica = ServerInfo::parse(&replica).check(&endpoint);
        assert!(replica.problems[0].contains("another master") && replica.is_transient);
    }
}
