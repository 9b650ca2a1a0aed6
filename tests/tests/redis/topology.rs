//! Single servers as tests start them: with TLS, users, replicas, separate clocks, and several
//! independent servers. Each property is checked by its effect.

use std::time::Duration;

use leasehold_tests::{
    clock::boottime,
    net::certificates::{Authority, SignedCertificate},
    process::private_wall_clock::PrivateWallClock,
    redis::{
        connection::{RedisConnection, Reply},
        replica_and_backup::{start_replica_of, take_backup},
        server::{RedisOptions, RedisServer, RestartData},
    },
    redlock::deployment::RedlockDeployment,
    scale::print_figures,
    until::until,
};
use tokio::{io::Result, time::sleep};

/// Gain of a clock that runs 8 % fast.
const GAIN_PPM: i32 = 80_000;
/// Maximum difference between the rates of the kernel's own clocks.
const SLEW: f64 = 0.001;
const MEASURED: Duration = Duration::from_secs(1);
const STEP_MS: i64 = 90_000;
const TTL_MS: &str = "60000";

#[tokio::test]
async fn a_first_replica_and_a_backup_change_no_process() {
    for (what, attach) in [("a first replica", true), ("redis-cli --rdb", false)] {
        let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await;
        let before = master.identity().await;
        // The replica stays attached until the identity has been read again.
        let _replica = if attach {
            Some(start_replica_of(&master).await)
        } else {
            take_backup(&master).await;
            None
        };
        let after = master.identity().await;
        print_figures(&format!(
            "topologies {what}: run_id is the same, master_replid {} -> {}, master_replid2 {}",
            before.replid, after.replid, after.replid2
        ));
        assert_eq!(after.run_id, before.run_id, "{what}");
        assert_ne!(after.replid, before.replid, "{what}");
        assert!(after.was_never_promoted(), "{what}: {after:?}");
    }
}

#[tokio::test]
async fn a_server_takes_tls_by_certificates_only() {
    let authority = Authority::new("stores");
    let clients = Authority::new("brokers");
    let strangers = Authority::new("strangers");
    let certificate = authority.server(&["127.0.0.1", "localhost"]);
    let client = clients.client("broker");
    let open = RedisServer::start_tls(&certificate, None, &[]).await;
    let closed = RedisServer::start_tls(&certificate, Some(&clients), &[]).await;
    assert!(open.url().starts_with("rediss://127.0.0.1:"));

    let pong = Reply::Simple("PONG".to_owned());
    let anybody = ping(&open, &authority, None).await;
    assert_eq!(anybody.expect("TLS"), pong);
    let known = ping(&closed, &authority, Some(&client)).await;
    assert_eq!(known.expect("TLS"), pong);

    let stranger = strangers.client("broker");
    let plain = closed.connect().await.command(&["PING"]).await;
    for (who, result) in [
        ("nobody", ping(&closed, &authority, None).await),
        (
            "a stranger",
            ping(&closed, &authority, Some(&stranger)).await,
        ),
        ("who trusts another", ping(&open, &strangers, None).await),
        ("who speaks plain", plain),
    ] {
        let refused = result.expect_err(who);
        print_figures(&format!("topologies TLS refuses {who}: {refused}"));
    }
}

#[tokio::test]
async fn a_server_has_users() {
    let users = "--user default off --user broker on >secret ~lh:* &lh:* +@all -@dangerous";
    let users: Vec<&str> = users.split(' ').collect();
    let server = RedisServer::start_with(&users).await;
    let mut raw = server.connect().await;
    let refusals = [
        raw.expect_error(&["GET", "lh:x"]).await,
        raw.expect_error(&["AUTH", "broker", "wrong"]).await,
    ];
    raw.must(&["AUTH", "broker", "secret"]).await;
    raw.must(&["SET", "lh:x", "1"]).await;
    let refusals = refusals.into_iter().chain([
        raw.expect_error(&["GET", "x"]).await,
        raw.expect_error(&["FLUSHALL"]).await,
    ]);
    let begins = ["NOAUTH", "WRONGPASS", "NOPERM", "NOPERM"];
    for (refusal, begin) in refusals.zip(begins) {
        print_figures(&format!("topologies users: {refusal}"));
        assert!(refusal.starts_with(begin), "{refusal}");
    }
}

#[tokio::test]
async fn independent_servers_come_and_go_one_by_one() {
    let mut all = RedlockDeployment::start(5).await;
    assert!(
        all.url().starts_with("redlock://127.0.0.1:"),
        "{}",
        all.url()
    );
    assert_eq!(all.url().split(',').count(), 5);
    for server in all.servers() {
        server.connect().await.must(&["SET", "held", "x"]).await;
    }
    let before = [
        all.servers()[1].identity().await,
        all.servers()[3].identity().await,
    ];
    let started_at = boottime();
    all.kill(1).await;
    all.kill(3).await;
    let lost = boottime() - started_at;
    for (index, server) in all.servers().iter().enumerate() {
        let opened = RedisConnection::open(server.addr()).await;
        assert_eq!(opened.is_err(), [1, 3].contains(&index), "{index}");
    }
    let started_at = boottime();
    all.restart(1, RestartData::Kept).await;
    all.restart(3, RestartData::Deleted).await;
    print_figures(&format!(
        "topologies redlock: two of five lost in {} ms, started again in {} ms",
        lost.as_millis(),
        (boottime() - started_at).as_millis()
    ));
    for (index, held, before) in [(1, "x", &before[0]), (3, "", &before[1])] {
        let server = &all.servers()[index];
        let found = server.connect().await.must(&["GET", "held"]).await;
        assert_eq!(found.text(), held, "{index}");
        assert_ne!(server.identity().await.run_id, before.run_id);
    }
}

#[tokio::test]
async fn a_server_lives_under_a_clock_of_its_own() {
    let server = RedisServer::start_with_options(RedisOptions {
        clock: Some(PrivateWallClock::build().await),
        ..RedisOptions::default()
    })
    .await;
    let mut raw = server.connect().await;
    let rate = rate(&mut raw).await;
    server.clock().set_gain(GAIN_PPM);
    let fast = self::rate(&mut raw).await;
    server.clock().set_gain(-GAIN_PPM);
    let slow = self::rate(&mut raw).await;
    server.clock().set_gain(0);
    print_figures(&format!(
        "topologies clock: TIME goes at {rate:?}, 8 % fast at {fast:?}, 8 % slow at {slow:?} of real time"
    ));
    for ([least, most], set) in [(rate, 1.0), (fast, 1.08), (slow, 0.92)] {
        assert!(
            least <= set + SLEW && set - SLEW <= most,
            "{least} {set} {most}"
        );
    }

    raw.must(&["SET", "key", "x", "PX", TTL_MS]).await;
    for step in [STEP_MS, -2 * STEP_MS] {
        let before = time_us(&mut raw).await;
        let started_at = boottime();
        server.clock().step(step);
        // Valkey 9 reads the wall clock once per millisecond.
        let after = until("TIME follows", async || {
            let after = time_us(&mut raw).await;
            ((after - before).abs() >= step.abs() * 500).then_some(after)
        })
        .await;
        let took = i64::try_from((boottime() - started_at).as_micros()).expect("a short time");
        let stepped = after - before;
        assert!(stepped >= step * 1_000, "{stepped} us for {step} ms");
        print_figures(&format!(
            "topologies clock: stepped by {step} ms, TIME by {stepped} us"
        ));
        // The step and at most a few commands happen between the two readings of TIME.
        assert!(stepped <= step * 1_000 + took + 10_000, "{stepped} us");
        let found = raw.must(&["EXISTS", "key"]).await.integer();
        assert_eq!(found, 0, "expired at the first step");
    }
}

async fn ping(
    server: &RedisServer,
    trusts: &Authority,
    shows: Option<&SignedCertificate>,
) -> Result<Reply> {
    let mut raw = server.connect_tls(trusts, shows).await?;
    raw.command(&["PING"]).await
}

#[tokio::test]
async fn one_clock_of_several_servers_is_set_ahead() {
    let all = RedlockDeployment::start_with_clocks(3).await;
    all.servers()[1].clock().step(STEP_MS);
    let mut times = Vec::new();
    for server in all.servers() {
        times.push(time_us(&mut server.connect().await).await / 1_000);
    }
    assert!(times[1] >= times[0] + STEP_MS, "{times:?}");
    assert!(times[2] < times[0] + STEP_MS, "{times:?}");
}

/// Measures the rate of the server's clock. Returns a lower and an upper bound, which account for
/// the duration of the queries.
async fn rate(raw: &mut RedisConnection) -> [f64; 2] {
    let outer = boottime();
    let first = time_us(raw).await;
    let inner = boottime();
    sleep(MEASURED).await;
    let inner = boottime() - inner;
    let shown = time_us(raw).await - first;
    let outer = boottime() - outer;
    let shown = Duration::from_micros(u64::try_from(shown).expect("it goes on"));
    [outer, inner].map(|real| shown.as_secs_f64() / real.as_secs_f64())
}

async fn time_us(raw: &mut RedisConnection) -> i64 {
    let time = raw.must(&["TIME"]).await;
    let [seconds, micros] = time.array() else {
        panic!("not a time: {time:?}")
    };
    let [seconds, micros] = [seconds, micros].map(|part| part.text().parse::<i64>());
    seconds.expect("seconds") * 1_000_000 + micros.expect("microseconds")
}
