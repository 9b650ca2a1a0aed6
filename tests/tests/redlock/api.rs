//! The API of brokers on a RedLock store: supported and rejected calls, and the commands that
//! prepare and check the servers.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, LockRef, SetLockLimitRequest, hold_response::Message as Response,
    lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    client::{
        session::{LeaseEnd, SessionClient},
        stream::StreamClient,
        unary::{AcquireCall, Client, channel},
    },
    clock::boottime,
    load::store_expiry::{read_expiry, store_expiry},
    process::binaries::leasehold_server,
    redis::server::RestartData,
    redlock::deployment::RedlockDeployment,
    scale::print_figures,
    status::error_reason,
};
use tokio::{process::Command, time::timeout};
use tonic::{Code, Status};

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(20);
/// Maximum time from the end of a lease to the next grant.
const TIME_LIMIT: Duration = Duration::from_millis(700);
const GRACE_MS: u64 = 200;

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn waiting_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, WAIT)
}

fn addrs(brokers: &[BrokerProcess]) -> Vec<SocketAddr> {
    brokers.iter().map(BrokerProcess::addr).collect()
}

fn is_unsupported(status: &Status) {
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(error_reason(status), Some(ErrorReason::UnsupportedByStore));
    assert!(
        status.message().contains("exclusive"),
        "{}",
        status.message()
    );
}

/// Runs a command of the server binary. Returns its exit code and its output (stdout and stderr).
async fn run(options: &BrokerOptions, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(leasehold_server());
    command.args(args);
    command.args(["--store", &options.store, "--key-prefix", KEY_PREFIX]);
    command.envs(options.env.iter().map(|(key, value)| (key, value)));
    let output = timeout(LIMIT, command.kill_on_drop(true).output()).await;
    let output = output.expect("it ends").expect("its output");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8(text).expect("UTF-8"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn exclusive_locks_are_entered_again_and_other_kinds_are_refused() {
    let servers = RedlockDeployment::start(5).await;
    let brokers = servers.start_brokers(1).await;
    let client = Client::new("client", &addrs(&brokers), 0);
    for call in [
        immediate_call("a").shared(),
        immediate_call("a").with_permits(1, 5),
    ] {
        is_unsupported(
            &client
                .acquire_at(0, &call)
                .await
                .expect_err("not exclusive"),
        );
    }
    let mut locks = LockServiceClient::new(channel(brokers[0].addr()));
    let lock = Some(LockRef {
        name: "a".to_owned(),
        ..LockRef::default()
    });
    let set = locks.set_lock_limit(SetLockLimitRequest { lock, limit: 5 });
    is_unsupported(&set.await.expect_err("nothing has a limit"));

    let held = client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    let inner = client
        .acquire_under_at(0, &immediate_call("a"), &held.lease)
        .await;
    let inner = inner.expect("it holds the lock");
    assert_eq!(inner.token(), held.token());
    assert_eq!(inner.lease.grants[0].hold_count, 2);
    let also = client
        .acquire_under_at(0, &immediate_call("b"), &inner.lease)
        .await;
    let also = also.expect("another lock under the same lease");
    assert_eq!(also.lease.grants.len(), 2);
    let refused = client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect_err("it is held");
    assert_eq!(error_reason(&refused), Some(ErrorReason::LockHeld));
    client.release_at(0, &also).await.expect("all of it");
    client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    client
        .acquire_at(0, &immediate_call("b"))
        .await
        .expect("it is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_live_and_end_with_their_streams() {
    let servers = RedlockDeployment::start(5).await;
    let brokers = servers.start_brokers(2).await;
    let endpoints = addrs(&brokers);
    let next = Client::new("next", &endpoints, 1);

    let mut stream = StreamClient::open(endpoints[0]).await;
    let id = stream.acquire(&immediate_call("released"), 1).await;
    let lease = stream.expect_granted(id).await;
    let sequence = stream.heartbeat().await;
    assert_eq!(stream.wait_for_ack(sequence).await, 1);
    let waits = next.start_acquire_at(1, &waiting_call("released"));
    next.wait_for_queue_length_at(1, "released", 1).await;
    stream.release(&lease.lease_id).await;
    let released = boottime();
    assert!(matches!(stream.next_event().await, Response::Released(_)));
    waits.await.expect("no panic").expect("its turn comes");
    let notified_after = boottime() - released;

    let id = stream.acquire(&immediate_call("broken"), 1).await;
    stream.expect_granted(id).await;
    let id = stream
        .acquire(&immediate_call("graced").with_disconnect_grace(GRACE_MS), 1)
        .await;
    stream.expect_granted(id).await;
    let left = read_expiry(&next, 1, "broken").await.expect("it is held");
    drop(stream);
    let broken = boottime();
    let (graced, waited) = tokio::join!(
        async {
            next.acquire(&waiting_call("graced"))
                .await
                .expect("its turn comes");
            boottime()
        },
        async {
            next.acquire(&waiting_call("broken"))
                .await
                .expect("its turn comes");
            boottime()
        }
    );
    print_figures(&format!(
        "redlock streams: granted {notified_after:?} after a release at another broker, {:?} after a break with \
         a grace of {GRACE_MS} ms, {:?} after one without",
        graced - broken,
        waited - broken
    ));
    assert!(graced - broken < Duration::from_millis(GRACE_MS) + TIME_LIMIT);
    assert!(waited >= left.earliest && waited <= left.latest + TIME_LIMIT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_leaves_locks_for_no_longer_than_their_time() {
    let servers = RedlockDeployment::start(5).await;
    let mut brokers = servers.start_brokers(2).await;
    let endpoints = addrs(&brokers);
    let [alone, moves] =
        [&endpoints[..1], &endpoints].map(|addrs| SessionClient::start("holder", addrs, 0));
    let left = alone
        .acquire(&waiting_call("left"))
        .await
        .expect("it is free");
    let session_lease = moves
        .acquire(&waiting_call("kept"))
        .await
        .expect("it is free");
    for lease in [&left, &session_lease] {
        lease
            .wait_until(|known| known.acknowledged_at.is_some())
            .await;
    }
    brokers[0].kill().await;
    let killed = boottime();
    let next = Client::new("next", &endpoints[1..], 0);
    let granted = next
        .acquire(&waiting_call("left"))
        .await
        .expect("its turn comes");
    let granted_at = boottime();
    let after = granted_at - killed;
    let moved =
        session_lease.wait_until(|known| known.attached_at.is_some() || known.end.is_some());
    let moved = timeout(LIMIT, moved).await.expect("it goes on");
    print_figures(&format!(
        "redlock: granted {after:?} after the only broker of its holder was killed, E={:?}; another \
         lease went on at the next broker after {:?}",
        store_expiry(TTL),
        moved.attached_at.map(|at| at - killed)
    ));
    assert!(
        granted_at >= left.state().valid_until,
        "beside its former holder"
    );
    assert!(after <= store_expiry(TTL) + TIME_LIMIT, "{after:?}");
    assert!(granted.token() > left.token());
    assert_eq!(moved.end, None, "a broker's death ends no lease");
    assert_eq!(moves.release(&session_lease).await, LeaseEnd::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_prepared_once_and_checked() {
    let mut servers = RedlockDeployment::start(5).await;
    let options = servers.options();
    let keyless = BrokerOptions::for_store(servers.url());
    let (code, output) = run(&keyless, &["check-config"]).await;
    assert_eq!(code, Some(1));
    assert!(output.contains("store.deployment_key_file"), "{output}");
    let (code, output) = run(
        &options,
        &["check-config", "--connect", "--trust-empty-store"],
    )
    .await;
    assert!(
        code == Some(1) && output.contains("trust_empty_store"),
        "{output}"
    );

    for lost in [0, 1, 2] {
        servers.kill(lost).await;
    }
    let (code, output) = run(&options, &["init-store"]).await;
    assert!(
        code == Some(1) && output.contains("Only 2 of 5"),
        "{output}"
    );
    for written in [3, 4] {
        let mut raw = servers.servers()[written].connect().await;
        assert_eq!(
            raw.must(&["DBSIZE"]).await.integer(),
            0,
            "nothing was written"
        );
    }
    servers.restart(1, RestartData::Deleted).await;
    servers.restart(2, RestartData::Deleted).await;
    let (code, output) = run(&options, &["init-store"]).await;
    let missing = servers.servers()[0].addr().to_string();
    assert!(code == Some(0) && output.contains(&missing), "{output}");
    assert_eq!(
        output.matches("first era").count(),
        5,
        "four written, one not: {output}"
    );
    let (code, output) = run(&options, &["check-config", "--connect"]).await;
    assert!(code == Some(1) && output.contains(&missing), "{output}");

    // `init-store` writes nothing to an empty server beside used servers.
    servers.restart(0, RestartData::Deleted).await;
    let (code, output) = run(&options, &["init-store"]).await;
    assert!(
        code == Some(1) && output.contains("already hold keys"),
        "{output}"
    );
    let mut raw = servers.servers()[0].connect().await;
    assert_eq!(
        raw.must(&["DBSIZE"]).await.integer(),
        0,
        "nothing was written"
    );
    let (code, output) = run(&options, &["check-config", "--connect"]).await;
    assert_eq!(
        (code, output.contains("can be used")),
        (Some(0), true),
        "{output}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn another_list_of_the_same_servers_is_refused() {
    let servers = RedlockDeployment::start(5).await;
    let options = servers.options();
    options.init_store().await;
    let all = servers.url();
    // Three of these servers would have a different quorum.
    let fewer: Vec<_> = all.split(',').take(3).collect();
    let fewer = BrokerOptions {
        env: options.env.clone(),
        ..BrokerOptions::for_store(fewer.join(","))
    };
    let (code, output) = run(&fewer, &["check-config", "--connect"]).await;
    assert!(
        code == Some(1) && output.contains("another list of servers"),
        "{output}"
    );
    let twice = format!("{all},127.0.0.1:1,{}", servers.servers()[0].addr());
    let (code, output) = run(&BrokerOptions::for_store(twice), &["check-config"]).await;
    assert!(code == Some(1) && output.contains("twice"), "{output}");
}
