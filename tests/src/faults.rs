//! Faults made on real processes and connections, each of which must show its effect.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::broker_process::BrokerProcess;
use crate::client::Client;
use crate::clock::boottime;
use crate::deployment::Deployment;
use crate::load::CallRecord;
use crate::proxy::{Mode, Proxy, Way};
use crate::redis_connection::RedisConnection;

const DOWN: Duration = Duration::from_secs(1);
const BROKER_STOPPED: Duration = Duration::from_secs(3);
const SWALLOWED: Duration = Duration::from_secs(3);
const REDIS_STALLED: Duration = Duration::from_secs(2);
const REPEATED_FOR: Duration = Duration::from_millis(2_500);
const REPEATED_EVERY: Duration = Duration::from_millis(100);
const CALM: Duration = Duration::from_millis(500);
const NO_ANSWER: Duration = Duration::from_millis(500);
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);

/// A time during which a fault lasted.
#[derive(Debug, Clone)]
pub struct Window {
    /// Which fault, and its effect in figures.
    pub effect: String,
    /// Whether calls can end during it at all.
    pub store_works: bool,
    /// Its beginning.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
}

impl Window {
    /// Whether a moment lies in it.
    #[must_use]
    pub fn contains(&self, moment: Duration) -> bool {
        (self.from..self.to).contains(&moment)
    }

    /// Calls granted during it, and calls that were open in it but were not.
    #[must_use]
    pub fn granted_and_not(&self, calls: &[CallRecord]) -> (usize, usize) {
        let touching = calls
            .iter()
            .filter(|call| call.begun < self.to && call.ended >= self.from);
        let granted = |call: &&CallRecord| call.granted && self.contains(call.ended);
        let done = touching.clone().filter(granted).count();
        (done, touching.count() - done)
    }
}

/// Clients that count what they lose.
pub trait Clients: std::fmt::Debug + Sync {
    /// How many calls or streams lost their connection so far.
    fn transport_errors(&self) -> usize;
}

/// Makes faults on a deployment under load.
#[derive(Debug)]
pub struct Faults<'a> {
    /// The processes.
    pub deployment: &'a mut Deployment,
    /// One before each broker.
    pub proxies: &'a [Proxy],
    /// The clients.
    pub load: &'a dyn Clients,
}

impl Faults<'_> {
    /// Each fault once, with calm around it; faults of one broker hit the one at `victim`.
    pub async fn rotate(&mut self, victim: usize) -> Vec<Window> {
        let mut windows = Vec::new();
        for fault in 0..5 {
            sleep(CALM).await;
            let from = boottime();
            let effect = match fault {
                0 => {
                    kill_and_restart(&mut self.deployment.brokers[victim], DOWN).await;
                    "broker killed: refused".to_owned()
                }
                1 => {
                    self.stop_broker((victim + 1) % self.deployment.brokers.len())
                        .await
                }
                2 => self.cut_connections().await,
                3 => self.flush_scripts().await,
                _ => self.stall_redis().await,
            };
            windows.push(Window {
                effect,
                store_works: fault < 4,
                from,
                to: boottime(),
            });
        }
        sleep(CALM).await;
        windows
    }

    /// Nothing passes the busiest proxy this way for a while, though its connections stay open.
    pub async fn swallow(&mut self, way: Way) -> Window {
        sleep(CALM).await;
        let busiest = self.proxies.iter().max_by_key(|proxy| proxy.open());
        let proxy = busiest.expect("a proxy before each broker");
        let (errors, lost) = (self.load.transport_errors(), proxy.lost());
        let from = boottime();
        proxy.set_mode(Mode::Swallow(way));
        sleep(SWALLOWED).await;
        let failed = self.load.transport_errors() - errors;
        let lost = proxy.lost() - lost;
        proxy.set_mode(Mode::Forward);
        proxy.cut().await;
        assert!(
            lost > 0 && failed > 0,
            "{lost} frames swallowed, {failed} calls failed"
        );
        Window {
            effect: format!("swallowed {way:?}: {lost} frames, {failed} calls failed"),
            store_works: true,
            from,
            to: boottime(),
        }
    }

    async fn stop_broker(&mut self, victim: usize) -> String {
        let broker = &self.deployment.brokers[victim];
        let errors = self.load.transport_errors();
        broker.process().pause().await;
        let stopped = boottime();
        assert!(
            !answers(broker.addr()).await,
            "a stopped broker answers nothing"
        );
        sleep((stopped + BROKER_STOPPED).saturating_sub(boottime())).await;
        let failed = self.load.transport_errors() - errors;
        broker.process().resume();
        await_answer(broker.addr()).await;
        assert!(failed > 0, "calls at a stopped broker fail");
        format!("broker stopped: {failed} calls failed")
    }

    async fn cut_connections(&mut self) -> String {
        let errors = self.load.transport_errors();
        let until = boottime() + REPEATED_FOR;
        let mut cut = 0;
        while boottime() < until {
            for proxy in self.proxies {
                cut += proxy.cut().await;
            }
            sleep(REPEATED_EVERY).await;
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
        let until = boottime() + REPEATED_FOR;
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
            sleep(REPEATED_EVERY).await;
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
        let ping = timeout(NO_ANSWER, connection.command(&["PING"])).await;
        assert!(ping.is_err(), "a stalled Redis answers nothing");
        sleep((stalled + REDIS_STALLED).saturating_sub(boottime())).await;
        redis.process().resume();
        redis.connect().await.must(&["PING"]).await;
        "redis stalled: no PING".to_owned()
    }
}

/// SIGKILL, a time of absence, and a new process at the same address that answers.
pub async fn kill_and_restart(broker: &mut BrokerProcess, down: Duration) {
    broker.kill().await;
    assert!(
        TcpStream::connect(broker.addr()).await.is_err(),
        "a killed broker refuses"
    );
    sleep(down).await;
    broker.restart().await;
    await_answer(broker.addr()).await;
}

async fn cached_scripts(redis: &mut RedisConnection) -> usize {
    let count = redis.info("memory", "number_of_cached_scripts").await;
    count
        .and_then(|count| count.parse().ok())
        .expect("INFO memory counts cached scripts")
}

async fn answers(broker: SocketAddr) -> bool {
    let client = Client::new("probe", &[broker], 0);
    let call = timeout(NO_ANSWER, client.get_lock_at(0, "nobody's")).await;
    call.is_ok_and(|reply| !reply.is_err_and(|status| crate::status::unknown_outcome(&status)))
}

async fn await_answer(broker: SocketAddr) {
    let give_up = boottime() + RECOVERY_LIMIT;
    while !answers(broker).await {
        assert!(boottime() < give_up, "a broker answers again after a fault");
    }
}
