//! Injects faults into real processes and connections. Each fault asserts that it had an effect.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::broker::deployment::Deployment;
use crate::broker::process::BrokerProcess;
use crate::client::unary::Client;
use crate::clock::boottime;
use crate::history::{Fault, recorder::broker_name};
use crate::load::callers::{CallRecord, JudgedFault};
use crate::load::losses::Period;
use crate::net::http2_proxy::{Direction, Http2Proxy, ProxyMode};
use crate::redis::connection::RedisConnection;

const DOWNTIME: Duration = Duration::from_secs(1);
const BROKER_STOP_TIME: Duration = Duration::from_secs(3);
const FRAME_DROP_TIME: Duration = Duration::from_secs(3);
const REDIS_STALL_TIME: Duration = Duration::from_secs(2);
const REPEAT_DURATION: Duration = Duration::from_millis(2_500);
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);
const FAULT_FREE_TIME: Duration = Duration::from_millis(500);
const NO_REPLY_TIMEOUT: Duration = Duration::from_millis(500);
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);

/// Period during which a fault was active.
#[derive(Debug, Clone)]
pub struct FaultWindow {
    /// Name of the fault and its measured effect.
    pub effect: String,
    /// True if calls can complete during the fault.
    pub is_store_available: bool,
    /// The fault as the judge of a history knows it, or `None` if it excuses nothing.
    pub fault: Option<Fault>,
    pub started_at: Duration,
    pub ended_at: Duration,
}

impl FaultWindow {
    /// Returns the fault for the judge of the history.
    #[must_use]
    pub fn judged(&self) -> Option<JudgedFault> {
        Some(JudgedFault {
            fault: self.fault.clone()?,
            period: Period {
                started_at: self.started_at,
                ended_at: self.ended_at,
            },
        })
    }

    #[must_use]
    pub fn contains(&self, moment: Duration) -> bool {
        (self.started_at..self.ended_at).contains(&moment)
    }

    /// Returns the number of calls that were granted during the fault, and the number of other
    /// calls that were open during it.
    #[must_use]
    pub fn count_granted_and_open(&self, calls: &[CallRecord]) -> (usize, usize) {
        let touching = calls
            .iter()
            .filter(|call| call.started_at < self.ended_at && call.ended_at >= self.started_at);
        let granted = |call: &&CallRecord| call.is_granted && self.contains(call.ended_at);
        let done = touching.clone().filter(granted).count();
        (done, touching.count() - done)
    }
}

/// Clients under load, which count their transport errors.
pub trait LoadClients: std::fmt::Debug + Sync {
    /// Returns the number of calls or streams that have lost their connection.
    fn transport_errors(&self) -> usize;
}

/// Injects faults into a deployment under load.
#[derive(Debug)]
pub struct FaultInjector<'a> {
    pub deployment: &'a mut Deployment,
    /// Proxies, one in front of each broker.
    pub proxies: &'a [Http2Proxy],
    pub load: &'a dyn LoadClients,
}

impl FaultInjector<'_> {
    /// Injects each fault once, with calm periods in between. The broker at `victim` is killed, the
    /// next one is stopped.
    pub async fn inject_each(&mut self, victim: usize) -> Vec<FaultWindow> {
        let mut windows = Vec::new();
        for fault in 0..5 {
            sleep(FAULT_FREE_TIME).await;
            let from = boottime();
            let next = (victim + 1) % self.deployment.brokers.len();
            let (effect, judged) = match fault {
                0 => {
                    kill_and_restart(&mut self.deployment.brokers[victim], DOWNTIME).await;
                    let broker = broker_name(victim);
                    let effect = "broker killed: refused".to_owned();
                    (effect, Some(Fault::BrokerKilled { broker }))
                }
                1 => {
                    let broker = broker_name(next);
                    let effect = self.stop_broker(next).await;
                    (effect, Some(Fault::BrokerPaused { broker }))
                }
                2 => (self.cut_connections().await, Some(Fault::MessagesLost)),
                3 => (self.flush_scripts().await, None),
                _ => (self.stall_redis().await, Some(Fault::StoreStalled)),
            };
            windows.push(FaultWindow {
                effect,
                is_store_available: fault < 4,
                fault: judged,
                started_at: from,
                ended_at: boottime(),
            });
        }
        sleep(FAULT_FREE_TIME).await;
        windows
    }

    /// Drops all data in one direction of the busiest proxy for `FRAME_DROP_TIME`, while its
    /// connections stay open.
    pub async fn drop_frames(&mut self, way: Direction) -> FaultWindow {
        sleep(FAULT_FREE_TIME).await;
        let busiest = self
            .proxies
            .iter()
            .max_by_key(|proxy| proxy.open_connections());
        let proxy = busiest.expect("a proxy before each broker");
        let (errors, lost) = (self.load.transport_errors(), proxy.dropped_frames());
        let from = boottime();
        proxy.set_mode(ProxyMode::DropFrames(way));
        sleep(FRAME_DROP_TIME).await;
        let failed = self.load.transport_errors() - errors;
        let lost = proxy.dropped_frames() - lost;
        proxy.set_mode(ProxyMode::Forward);
        proxy.close_connections().await;
        assert!(
            lost > 0 && failed > 0,
            "{lost} frames swallowed, {failed} calls failed"
        );
        FaultWindow {
            effect: format!("swallowed {way:?}: {lost} frames, {failed} calls failed"),
            is_store_available: true,
            fault: Some(Fault::MessagesLost),
            started_at: from,
            ended_at: boottime(),
        }
    }

    async fn stop_broker(&mut self, victim: usize) -> String {
        let broker = &self.deployment.brokers[victim];
        let errors = self.load.transport_errors();
        broker.process().pause().await;
        let stopped = boottime();
        assert!(
            !is_responding(broker.addr()).await,
            "a stopped broker answers nothing"
        );
        sleep((stopped + BROKER_STOP_TIME).saturating_sub(boottime())).await;
        let failed = self.load.transport_errors() - errors;
        broker.process().resume();
        wait_until_responding(broker.addr()).await;
        assert!(failed > 0, "calls at a stopped broker fail");
        format!("broker stopped: {failed} calls failed")
    }

    async fn cut_connections(&mut self) -> String {
        let errors = self.load.transport_errors();
        let until = boottime() + REPEAT_DURATION;
        let mut cut = 0;
        while boottime() < until {
            for proxy in self.proxies {
                cut += proxy.close_connections().await;
            }
            sleep(REPEAT_INTERVAL).await;
        }
        let failed = self.load.transport_errors() - errors;
        assert!(
            cut > 0 && failed > 0,
            "{cut} connections cut, {failed} calls failed"
        );
        format!("connections cut: {cut}, {failed} calls failed")
    }

    async fn flush_scripts(&mut self) -> String {
        let mut redis = self.deployment.redis.connect().await;
        let until = boottime() + REPEAT_DURATION;
        let (mut flushes, mut reloads) = (0, 0);
        while boottime() < until {
            redis.must(&["MULTI"]).await;
            redis.must(&["SCRIPT", "FLUSH"]).await;
            redis.must(&["INFO", "memory"]).await;
            let reply = redis.must(&["EXEC"]).await;
            let info = reply
                .array()
                .last()
                .expect("two commands, two replies")
                .text();
            assert!(
                info.contains("number_of_cached_scripts:0"),
                "the flush took effect"
            );
            flushes += 1;
            sleep(REPEAT_INTERVAL).await;
            reloads += usize::from(cached_scripts(&mut redis).await > 0);
        }
        let give_up = boottime() + RECOVERY_LIMIT;
        while cached_scripts(&mut redis).await == 0 {
            assert!(boottime() < give_up, "brokers load their scripts again");
        }
        format!("scripts flushed: {flushes} times, loaded again within 100 ms {reloads} times")
    }

    async fn stall_redis(&mut self) -> String {
        let redis = &self.deployment.redis;
        let mut connection = redis.connect().await;
        redis.process().pause().await;
        let stalled = boottime();
        let ping = timeout(NO_REPLY_TIMEOUT, connection.command(&["PING"])).await;
        assert!(ping.is_err(), "a stalled Redis answers nothing");
        sleep((stalled + REDIS_STALL_TIME).saturating_sub(boottime())).await;
        redis.process().resume();
        redis.connect().await.must(&["PING"]).await;
        "redis stalled: no PING".to_owned()
    }
}

/// Kills a broker (SIGKILL), waits for `down`, and restarts it at the same address until it
/// responds.
pub async fn kill_and_restart(broker: &mut BrokerProcess, down: Duration) {
    broker.kill().await;
    assert!(
        TcpStream::connect(broker.addr()).await.is_err(),
        "a killed broker refuses"
    );
    sleep(down).await;
    broker.restart().await;
    wait_until_responding(broker.addr()).await;
}

async fn cached_scripts(redis: &mut RedisConnection) -> usize {
    let count = redis.info("memory", "number_of_cached_scripts").await;
    count
        .and_then(|count| count.parse().ok())
        .expect("INFO memory counts cached scripts")
}

async fn is_responding(broker: SocketAddr) -> bool {
    let client = Client::new("probe", &[broker], 0);
    let call = timeout(NO_REPLY_TIMEOUT, client.get_lock_at(0, "nobody's")).await;
    call.is_ok_and(|reply| !reply.is_err_and(|status| crate::status::has_unknown_outcome(&status)))
}

async fn wait_until_responding(broker: SocketAddr) {
    let give_up = boottime() + RECOVERY_LIMIT;
    while !is_responding(broker).await {
        assert!(boottime() < give_up, "a broker answers again after a fault");
    }
}
