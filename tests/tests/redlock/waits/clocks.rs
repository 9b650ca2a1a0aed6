//! One of five independent servers has a clock of its own: too fast, too slow or stepped, and is in
//! every quorum that grants.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_server::lock::NOT_AFTER_MS;
use leasehold_tests::{
    broker_process::BrokerProcess,
    client::{AcquireCall, Client},
    clock::boottime,
    redlock::{RedlockDeployment, serving},
    scale::{count, figures},
    until::until,
    witness::{Share, Visit, Witness},
};
use tokio::time::sleep;

const BROKERS: usize = 3;
const CALLERS: usize = 8;
/// Tokens may be as far from a server's clock as half of the time for which it forgets: 6 s here.
const TTL_MAX: &str = "10s";
/// A server whose clock was stepped has no vote for `Q`, which is shorter with this.
const TTL_MAX_STEPPED: &str = "3s";
const TTL: Duration = Duration::from_secs(2);
/// Long enough for others to be granted the lock meanwhile.
const LONG: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(20);
/// The largest that chrony slews by.
const GAIN_PPM: i32 = 80_000;
/// What stopped servers were asked before is not executed any more.
const TOO_LATE: Duration = Duration::from_millis(NOT_AFTER_MS + 250);
/// A step after which the server still votes until it is noticed: its leases end too soon, which nothing
/// can prevent.
const KEEPS_VOTE_MS: i64 = 1_500;
/// While the two others of a former quorum are away.
const AWAY: Duration = Duration::from_secs(1);
/// The server whose clock it is.
const ODD: usize = 2;

struct Run {
    servers: RedlockDeployment,
    /// Killed after the servers are used no more.
    _brokers: Vec<BrokerProcess>,
    endpoints: Vec<SocketAddr>,
    witness: Arc<Witness>,
    refused_writes: usize,
}

impl Run {
    async fn start(ttl_max: &str, rounds: usize) -> Self {
        let servers = RedlockDeployment::start_with_clocks(5).await;
        let options = servers.options_up_to(ttl_max);
        options.init_store().await;
        let brokers = BrokerProcess::start_many(&options, BROKERS).await;
        serving(&brokers).await;
        Self {
            endpoints: brokers.iter().map(BrokerProcess::addr).collect(),
            servers,
            _brokers: brokers,
            witness: Arc::new(Witness::new(rounds)),
            refused_writes: 0,
        }
    }

    /// A first holder keeps the lock until its validity ends, and gives nothing back. Eight callers
    /// want it then, and the only quorum without most of the former one has the odd server, too.
    async fn round(&mut self, round: usize, ttl: Duration, step_ms: i64) {
        let lock = format!("round/{round}");
        self.servers.pause([3, 4]).await;
        let first = Client::new("first", &self.endpoints, round);
        let call = AcquireCall::new(&lock, ttl, Duration::ZERO);
        let votes = async || first.acquire(&call).await.ok();
        let held = until("the odd server votes, too", votes).await;
        let entered = boottime();
        self.witness.record(Visit {
            lock: round,
            share: Share::ALL,
            token: held.token(),
            entered,
            ended: held.valid_until(),
        });
        assert!(
            self.witness.write(round, held.token(), 1),
            "the first of all writes"
        );
        sleep(TOO_LATE).await;
        self.servers.resume([3, 4]);
        self.servers.pause([0, 1]).await;
        self.servers.servers()[ODD].clock().step(step_ms);
        let callers = (0..CALLERS).map(|caller| self.contend(round, &lock, caller));
        let back = async {
            sleep(AWAY).await;
            self.servers.resume([0, 1]);
        };
        let (written, ()) = tokio::join!(join_all(callers), back);
        assert!(written.iter().all(|written| *written), "tokens rise");
        let stale = self.witness.write(round, held.token(), 1);
        assert!(!stale, "the first holder's late write is refused");
        self.refused_writes += 1;
        self.servers.servers()[ODD].clock().step(-step_ms);
    }

    async fn contend(&self, round: usize, lock: &str, caller: usize) -> bool {
        let client = Client::new(&format!("caller-{caller}"), &self.endpoints, caller);
        let call = AcquireCall::new(lock, TTL, WAIT);
        let held = client.acquire(&call).await.expect("its turn comes");
        let entered = boottime();
        let writer = u64::try_from(caller).expect("few callers") + 2;
        let is_written = self.witness.write(round, held.token(), writer);
        sleep(Duration::from_millis(20)).await;
        self.witness.record(Visit {
            lock: round,
            share: Share::ALL,
            token: held.token(),
            entered,
            ended: boottime().min(held.valid_until()),
        });
        // What a release says is other tests' business: a lost one costs an expiry.
        let _ = client.release(&held).await;
        is_written
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_eight_percent_off_makes_no_overlap() {
    let gains = [GAIN_PPM, -GAIN_PPM];
    let each = count(10, 1);
    let mut run = Run::start(TTL_MAX, each * gains.len()).await;
    let rounds = gains.into_iter().flat_map(|gain| vec![gain; each]);
    for (round, gain) in rounds.enumerate() {
        run.servers.servers()[ODD].clock().set_gain(gain);
        run.round(round, LONG, 0).await;
    }
    let verdict = run.witness.verdict();
    figures(&format!(
        "redlock_clocks: one of five 8 % fast, then slow: {verdict:?}"
    ));
    let wrong = (
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
    );
    assert_eq!(wrong, (0, 0, 0), "overlaps, regressions, fence violations");
    assert!(verdict.visits >= 2 * (CALLERS + 1), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_stepped_lets_no_stale_write_pass() {
    let steps = [KEEPS_VOTE_MS, 60_000, -60_000, 3_600_000, -3_600_000];
    let rounds = count(20, steps.len());
    let mut run = Run::start(TTL_MAX_STEPPED, rounds).await;
    for (round, step) in steps.into_iter().cycle().take(rounds).enumerate() {
        let before = run.witness.verdict().overlaps;
        let ttl = if step == KEEPS_VOTE_MS { LONG } else { TTL };
        run.round(round, ttl, step).await;
        let overlaps = run.witness.verdict().overlaps - before;
        figures(&format!(
            "redlock_clocks: one of five stepped by {step} ms: overlaps={overlaps}"
        ));
    }
    let verdict = run.witness.verdict();
    figures(&format!(
        "redlock_clocks: {rounds} steps: {verdict:?}, stale writes refused={}",
        run.refused_writes
    ));
    assert_eq!((verdict.regressions, verdict.fence_violations), (0, 0));
    assert_eq!(
        verdict.caught, run.refused_writes,
        "every stale write, and no other"
    );
}
