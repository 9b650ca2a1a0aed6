//! Redis with Sentinel as tests start it: the effects of each kind of failover, without brokers.

use std::time::Duration;

use futures::future::select_all;
use leasehold_tests::{
    clock::boottime,
    redis::{
        connection::{RedisConnection, Reply},
        server::{Identity, RestartData},
    },
    scale::print_figures,
    sentinel::deployment::{MASTER, SentinelDeployment, SentinelOptions},
    until::until,
};
use tokio::time::{sleep, timeout};

const WRITE_EVERY: Duration = Duration::from_millis(10);
const WRITES_END: Duration = Duration::from_secs(20);

/// Replies to a client that writes to one server until a write is rejected.
struct WriteReplies {
    /// Number of accepted writes.
    taken: usize,
    /// Time of the reply to the last accepted write.
    last: Duration,
    /// Error of the write after the last accepted one.
    refusal: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_and_so_is_its_successor() {
    let started_at = boottime();
    let mut all = SentinelDeployment::start(SentinelOptions::default()).await;
    let started = boottime() - started_at;
    assert_eq!(
        (all.sentinels().len(), all.count(), all.master().await),
        (3, 3, 0)
    );
    let url = all.url();
    assert!(url.starts_with("redis-sentinel://127.0.0.1:"), "{url}");
    assert!(url.ends_with(&format!("/{MASTER}")), "{url}");
    let mut master = 0;
    for (round, data) in [RestartData::Kept, RestartData::Deleted]
        .into_iter()
        .enumerate()
    {
        let before = all.server(master).identity().await;
        let key = format!("kept/{round}");
        replicated_write(&all, master, &key).await;
        let killed = boottime();
        all.kill(master).await;
        let one = async {
            wait_for_first_report(&all, master).await;
            boottime() - killed
        };
        let (next, one) = tokio::join!(all.wait_for_failover(master), one);
        let named = boottime() - killed;
        writable(&all, next).await;
        let writes = boottime() - killed;
        assert_continues(&all.server(next).identity().await, &before);
        assert_eq!(value(&all, next, &key).await, "x");
        let started_at = boottime();
        all.restart(master, data).await;
        all.wait_until_replicating(master, next).await;
        let again = boottime() - started_at;
        assert_eq!(value(&all, master, &key).await, "x");
        all.wait_until_ready().await;
        print_figures(&format!(
            "topologies sentinel kill -9 ({data:?}): started_in={started:?} named_by_one_after={one:?} \
             named_by_all_after={named:?} \
             writes_after={writes:?} restarted_as_replica_in={again:?} ready_in={:?}",
            boottime() - started_at
        ));
        master = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_master_comes_back_as_a_replica() {
    let all = SentinelDeployment::start(SentinelOptions::default()).await;
    let before = all.server(0).identity().await;
    replicated_write(&all, 0, "kept").await;
    let mut client = all.connect(0).await;
    let stopped = boottime();
    all.server(0).process().pause().await;
    let next = all.wait_for_failover(0).await;
    let named = boottime() - stopped;
    writable(&all, next).await;
    let writes = boottime() - stopped;
    assert_continues(&all.server(next).identity().await, &before);

    // The write is in the socket when the former master resumes.
    let late = async { client.command(&["SET", "late", "x"]).await };
    let (late, woken) = tokio::join!(late, async {
        all.server(0).process().resume();
        boottime()
    });
    let late = late.expect("the former master answers");
    let after = client.command(&["SET", "late", "x"]).await;
    all.wait_until_replicating(0, next).await;
    let follows = boottime() - woken;
    let ended = client.command(&["SET", "late", "x"]).await;
    ended.expect_err("Sentinels cut the connections of a server that they demote");
    let mut client = all.connect(0).await;
    let refused = client.expect_error(&["SET", "late", "x"]).await;
    print_figures(&format!(
        "topologies sentinel SIGSTOP: named_by_all_after={named:?} writes_after={writes:?}; woken, the former \
         master answers a write with {late:?}, the next with {after:?}, {follows:?} later: {refused}"
    ));
    assert!(refused.starts_with("READONLY"), "{refused}");
    for server in [0, next] {
        assert_eq!(value(&all, server, "kept").await, "x");
        assert_eq!(value(&all, server, "late").await, "", "refused or lost");
    }
    all.wait_until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_master_refuses_writes_and_loses_what_it_took() {
    let options = SentinelOptions {
        has_partition_proxies: true,
        ..SentinelOptions::default()
    };
    let (lag, down_after) = (options.min_replicas_max_lag, options.down_after);
    let all = SentinelDeployment::start(options).await;
    let before = all.server(0).identity().await;
    replicated_write(&all, 0, "kept").await;
    let mut client = all.connect(0).await;
    let parted = boottime();
    all.isolate(0);
    let successor = async {
        let next = all.wait_for_failover(0).await;
        (next, boottime() - parted)
    };
    let taking_over = async {
        first_write(&all, [1, 2]).await;
        boottime() - parted
    };
    let writing = write_until_rejected(&mut client);
    let (writes, (next, named), first) = tokio::join!(writing, successor, taking_over);
    let last = writes.last - parted;
    print_figures(&format!(
        "topologies sentinel partition: the isolated master took {} writes, the last after {last:?}, then: \
         {}; successor writes_after={first:?}, named_by_all_after={named:?}",
        writes.taken, writes.refusal
    ));
    assert!(
        writes.refusal.starts_with("NOREPLICAS"),
        "{}",
        writes.refusal
    );
    // The server counts whole seconds, and checks the lag every second.
    assert!(last <= lag + Duration::from_secs(3), "{last:?}");
    assert_continues(&all.server(next).identity().await, &before);

    let healed = boottime();
    all.heal();
    all.wait_until_replicating(0, next).await;
    print_figures(&format!(
        "topologies sentinel partition: healed, the former master follows after {:?}",
        boottime() - healed
    ));
    assert!(writes.taken > 0);
    for server in [0, next] {
        assert_eq!(value(&all, server, "kept").await, "x");
        assert_eq!(kept_writes(&all, server, writes.taken).await, 0, "lost");
    }
    all.wait_until_ready().await;

    // The master is isolated from clients only, and is not replaced.
    let mut client = all.connect(next).await;
    all.isolate_from_clients(next);
    let unheard = timeout(2 * down_after, client.command(&["PING"])).await;
    assert!(unheard.is_err(), "{unheard:?}");
    all.wait_until_ready().await;
    assert_eq!(all.master().await, next);
    all.heal();
    client
        .next_message()
        .await
        .expect("what was sent arrives late");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_fail_over_needs_no_second_sentinel() {
    let mut all = SentinelDeployment::start(SentinelOptions::default()).await;
    let before = all.server(0).identity().await;
    for index in [1, 2] {
        all.kill_sentinel(index).await;
    }
    let mut raw = all.sentinels()[0].connect().await;
    let quorum = until("it misses the others", async || {
        match raw.command(&["SENTINEL", "CKQUORUM", MASTER]).await {
            Ok(Reply::Error(text)) => Some(text),
            Ok(_) | Err(_) => None,
        }
    })
    .await;
    assert!(quorum.starts_with("NOQUORUM"), "{quorum}");

    let mut client = all.connect(0).await;
    let asked_at = boottime();
    let successor = async {
        all.start_failover().await;
        let next = all.wait_for_failover(0).await;
        let named = boottime() - asked_at;
        writable(&all, next).await;
        (next, named, boottime() - asked_at)
    };
    let (writes, (next, named, first)) = tokio::join!(write_until_rejected(&mut client), successor);
    let last = writes.last - asked_at;
    all.wait_until_replicating(0, next).await;
    let follows = boottime() - asked_at;
    let lost = writes.taken - kept_writes(&all, next, writes.taken).await;
    print_figures(&format!(
        "topologies sentinel planned, one Sentinel left ({quorum}): named_by_all_after={named:?} \
         writes_after={first:?}; the former master took {} writes, the last after {last:?}, {lost} of \
         them lost, then: {}; follows_after={follows:?}",
        writes.taken, writes.refusal
    ));
    assert_continues(&all.server(next).identity().await, &before);
    for index in [1, 2] {
        all.restart_sentinel(index).await;
    }
    all.wait_until_ready().await;
    let [first, second] = [0, 1].map(|index| all.sentinels()[index].master());
    assert_eq!(
        (first.await, second.await),
        (all.addr(next), all.addr(next))
    );
}

/// Asserts that the server has a new replication id, and continues the data of its predecessor.
fn assert_continues(after: &Identity, before: &Identity) {
    assert_ne!(after.run_id, before.run_id);
    assert_ne!(after.replid, before.replid);
    assert_eq!(after.replid2, before.replid);
}

async fn replicated_write(all: &SentinelDeployment, master: usize, key: &str) {
    let mut raw = all.connect(master).await;
    raw.must(&["SET", key, "x"]).await;
    let replicas = raw.must(&["WAIT", "2", "10000"]).await;
    assert_eq!(replicas.integer(), 2);
}

/// Waits until a server accepts writes. Each write has its own connection, because Sentinels cut
/// the connections of a server that they promote.
async fn writable(all: &SentinelDeployment, server: usize) {
    until("the new master takes writes", async || {
        let mut raw = all.connect(server).await;
        let written = raw.command(&["SET", "new", "x"]).await;
        matches!(written, Ok(Reply::Simple(_))).then_some(())
    })
    .await;
}

/// Waits until the first Sentinel names another master.
async fn wait_for_first_report(all: &SentinelDeployment, from: usize) {
    let former = all.addr(from);
    let sentinels = all.sentinels().iter();
    select_all(sentinels.map(|sentinel| Box::pin(sentinel.wait_for_new_master(former)))).await;
}

/// Waits until one of two servers accepts a write.
async fn first_write(all: &SentinelDeployment, servers: [usize; 2]) {
    let writes = servers.map(|server| Box::pin(writable(all, server)));
    select_all(writes).await;
}

/// Writes one key after the other until a write is rejected, or the connection is cut.
async fn write_until_rejected(client: &mut RedisConnection) -> WriteReplies {
    let mut taken = 0;
    let mut last = boottime();
    let refused = async {
        loop {
            let key = format!("taken/{taken}");
            match client.command(&["SET", &key, "x"]).await {
                Ok(Reply::Error(refusal)) => return refusal,
                Ok(_) => (taken, last) = (taken + 1, boottime()),
                Err(error) => return format!("the connection ended: {error}"),
            }
            sleep(WRITE_EVERY).await;
        }
    };
    let refusal = timeout(WRITES_END, refused).await;
    let refusal = refusal.expect("a former master refuses writes in the end");
    WriteReplies {
        taken,
        last,
        refusal,
    }
}

/// Returns the number of accepted keys that a server has.
async fn kept_writes(all: &SentinelDeployment, server: usize, taken: usize) -> usize {
    let keys: Vec<_> = (0..taken).map(|number| format!("taken/{number}")).collect();
    let mut words = vec!["EXISTS"];
    words.extend(keys.iter().map(String::as_str));
    let mut raw = all.server(server).connect().await;
    let count = raw.must(&words).await.integer();
    usize::try_from(count).expect("a count")
}

async fn value(all: &SentinelDeployment, server: usize, key: &str) -> String {
    let mut raw = all.server(server).connect().await;
    raw.must(&["GET", key]).await.text().to_owned()
}
