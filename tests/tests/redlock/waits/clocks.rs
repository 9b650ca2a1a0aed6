//! A RedLock store of five servers, one of which has a clock that is too fast, too slow or stepped.
//! This server is in every quorum that grants.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_server::lock::COMMAND_DEADLINE_MS;
use leasehold_tests::{
    broker::process::BrokerProcess,
    client::unary::{AcquireCall, Client},
    clock::boottime,
    load::mutual_exclusion_oracle::{LockUse, Oracle, Share},
    redlock::deployment::{RedlockDeployment, wait_until_serving},
    scale::{print_figures, scaled_count},
    until::until,
};
use tokio::time::sleep;

const BROKERS: usize = 3;
const CALLERS: usize = 8;
/// Maximum TTL of the test with a fast or slow clock. A token may differ from a server's clock by
/// about half of `Q`, which is 6 s here.
const TTL_MAX: &str = "10s";
/// Maximum TTL of the test with steps. A server whose clock was stepped has no vote for `Q`, which
/// this value keeps short.
const TTL_MAX_STEPPED: &str = "3s";
const TTL: Duration = Duration::from_secs(2);
/// TTL of a first holder that leaves time for grants to other callers.
const LONG: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(20);
/// Maximum rate at which chrony slews a clock.
const GAIN_PPM: i32 = 80_000;
/// Time after which a node rejects a command that was sent before, with a margin of 250 ms.
const TOO_LATE: Duration = Duration::from_millis(COMMAND_DEADLINE_MS + 250);
/// Step after which the server still votes until the step is detected. The leases of this server
/// end too early, which nothing can prevent.
const KEEPS_VOTE_MS: i64 = 1_500;
/// Time for which the two other servers of the first quorum are paused.
const PAUSED_FOR: Duration = Duration::from_secs(1);
/// Index of the server with the deviating clock.
const DEVIATING_SERVER: usize = 2;

struct Run {
    servers: RedlockDeployment,
    /// Brokers, which are killed after the servers.
    _brokers: Vec<BrokerProcess>,
    endpoints: Vec<SocketAddr>,
    oracle: Arc<Oracle>,
    refused_writes: usize,
}

impl Run {
    async fn start(ttl_max: &str, rounds: usize) -> Self {
        let servers = RedlockDeployment::start_with_clocks(5).await;
        let options = servers.options_with_ttl_max(ttl_max);
        options.init_store().await;
        let brokers = BrokerProcess::start_many(&options, BROKERS).await;
        wait_until_serving(&brokers).await;
        Self {
            endpoints: brokers.iter().map(BrokerProcess::addr).collect(),
            servers,
            _brokers: brokers,
            oracle: Arc::new(Oracle::new(rounds)),
            refused_writes: 0,
        }
    }

    /// Lets a first holder keep the lock until its validity ends, without a release. Meanwhile
    /// eight callers request the lock. While the two other servers of the first quorum are paused,
    /// the only possible quorum includes the odd server, too.
    async fn round(&mut self, round: usize, ttl: Duration, step_ms: i64) {
        let lock = format!("round/{round}");
        self.servers.pause([3, 4]).await;
        let first = Client::new("first", &self.endpoints, round);
        let call = AcquireCall::new(&lock, ttl, Duration::ZERO);
        let votes = async || first.acquire(&call).await.ok();
        let held = until("the odd server votes, too", votes).await;
        let entered = boottime();
        self.oracle.record(LockUse {
            lock: round,
            share: Share::ALL,
            token: held.token(),
            started_at: entered,
            ended_at: held.valid_until(),
        });
        assert!(
            self.oracle.write(round, held.token(), 1),
            "the first of all writes"
        );
        sleep(TOO_LATE).await;
        self.servers.resume([3, 4]);
        self.servers.pause([0, 1]).await;
        self.servers.servers()[DEVIATING_SERVER]
            .clock()
            .step(step_ms);
        let callers = (0..CALLERS).map(|caller| self.contend(round, &lock, caller));
        let back = async {
            sleep(PAUSED_FOR).await;
            self.servers.resume([0, 1]);
        };
        let (written, ()) = tokio::join!(join_all(callers), back);
        assert!(written.iter().all(|written| *written), "tokens rise");
        let stale = self.oracle.write(round, held.token(), 1);
        assert!(!stale, "the first holder's late write is refused");
        self.refused_writes += 1;
        self.servers.servers()[DEVIATING_SERVER]
            .clock()
            .step(-step_ms);
    }

    async fn contend(&self, round: usize, lock: &str, caller: usize) -> bool {
        let client = Client::new(&format!("caller-{caller}"), &self.endpoints, caller);
        let call = AcquireCall::new(lock, TTL, WAIT);
        let held = client.acquire(&call).await.expect("its turn comes");
        let entered = boottime();
        let writer = u64::try_from(caller).expect("few callers") + 2;
        let is_written = self.oracle.write(round, held.token(), writer);
        sleep(Duration::from_millis(20)).await;
        self.oracle.record(LockUse {
            lock: round,
            share: Share::ALL,
            token: held.token(),
            started_at: entered,
            ended_at: boottime().min(held.valid_until()),
        });
        // Other tests check the result of a release. A lost release costs an expiry.
        let _ = client.release(&held).await;
        is_written
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_eight_percent_off_makes_no_overlap() {
    let gains = [GAIN_PPM, -GAIN_PPM];
    let each = scaled_count(10, 1);
    let mut run = Run::start(TTL_MAX, each * gains.len()).await;
    let rounds = gains.into_iter().flat_map(|gain| vec![gain; each]);
    for (round, gain) in rounds.enumerate() {
        run.servers.servers()[DEVIATING_SERVER]
            .clock()
            .set_gain(gain);
        run.round(round, LONG, 0).await;
    }
    let verdict = run.oracle.verdict();
    print_figures(&format!(
        "redlock_clocks: one of five 8 % fast, then slow: {verdict:?}"
    ));
    let wrong = (
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
    );
    assert_eq!(wrong, (0, 0, 0), "overlaps, regressions, fence violations");
    assert!(verdict.uses >= 2 * (CALLERS + 1), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_stepped_lets_no_stale_write_pass() {
    let steps = [KEEPS_VOTE_MS, 60_000, -60_000, 3_600_000, -3_600_000];
    let rounds = scaled_count(20, steps.len());
    let mut run = Run::start(TTL_MAX_STEPPED, rounds).await;
    for (round, step) in steps.into_iter().cycle().take(rounds).enumerate() {
        let before = run.oracle.verdict().overlaps;
        let ttl = if step == KEEPS_VOTE_MS { LONG } else { TTL };
        run.round(round, ttl, step).await;
        let overlaps = run.oracle.verdict().overlaps - before;
        print_figures(&format!(
            "redlock_clocks: one of five stepped by {step} ms: overlaps={overlaps}"
        ));
    }
    let verdict = run.oracle.verdict();
    print_figures(&format!(
        "redlock_clocks: {rounds} steps: {verdict:?}, stale writes refused={}",
        run.refused_writes
    ));
    assert_eq!((verdict.regressions, verdict.fence_violations), (0, 0));
    assert_eq!(
        verdict.rejected_writes, run.refused_writes,
        "every stale write, and no other"
    );
}
