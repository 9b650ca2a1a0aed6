//! `leasehold acquire`, `renew`, `release` and `hold`: leases that scripts renew, and a lease that
//! the program renews for them.

use std::os::unix::fs::PermissionsExt as _;
use std::{fs, time::Duration};

use leasehold::Client as Sdk;
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    client::unary::Client,
    clock::boottime,
    process::leasehold_command::{Cli, run_command},
    repository::golden::{assert_golden, parse_output},
};
use rustix::process::Signal;
use serde_json::Value;

async fn start_broker() -> (InProcessBroker, Cli) {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    (broker, cli)
}

async fn sdk(broker: &InProcessBroker, owner: &str) -> Sdk {
    let client = Sdk::builder(&format!("http://{}", broker.api)).owner(owner);
    client.connect().await.expect("a broker that runs")
}

#[tokio::test]
async fn a_lease_goes_from_call_to_call() {
    let (broker, cli) = start_broker().await;
    let args = [
        "acquire",
        "a",
        "--permits=2/3",
        "--ttl=20s",
        "--reason=why",
        "--label=team=x",
    ];
    let acquired = cli.run(&args).await;
    let lease = parse_output(&acquired);
    assert_golden("acquire", &lease);
    let renewed = cli
        .run_with(&["renew", "--ttl=30s"], &acquired.stdout)
        .await;
    let renewed = parse_output(&renewed);
    assert_eq!(renewed["ttl_ms"], 30_000);
    assert_eq!(renewed["locks"], lease["locks"]);
    assert_eq!(renewed["lease_token"], lease["lease_token"]);
    let released = cli
        .run_with(&["release", "-o=json"], &renewed.to_string())
        .await;
    let released = parse_output(&released);
    assert_golden("release", &released);
    assert_eq!(released["lease_id"], lease["lease_id"]);
    let again = cli.run_with(&["release"], &renewed.to_string()).await;
    assert_eq!(
        (again.code, again.stdout.as_str()),
        (Some(0), "already released\n")
    );
    let over = cli.run_with(&["renew"], &renewed.to_string()).await;
    assert_eq!((over.code, over.stdout.as_str()), (Some(123), ""));
    assert!(
        over.stderr.contains("(Aborted, LEASE_EXPIRED)"),
        "{}",
        over.stderr
    );
    broker.stop().await;
}

#[tokio::test]
async fn a_lease_is_kept_in_a_file_of_ones_own() {
    let (broker, cli) = start_broker().await;
    let file = cli.home.path().join("lease");
    let with_file = |args: &[&str]| {
        let mut command = cli.command(args);
        command.env("LEASEHOLD_LEASE_FILE", &file);
        command
    };
    let acquired = run_command(with_file(&["acquire", "a", "--lock=b"])).await;
    assert_eq!(
        (acquired.code, acquired.stdout.as_str()),
        (Some(0), ""),
        "{acquired:?}"
    );
    let mode = fs::metadata(&file)
        .expect("it is written")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = fs::read_to_string(&file).expect("it is written");
    let value: Value = serde_json::from_str(&before).expect("JSON");
    assert_golden("acquire_several", &value);
    let renewed = run_command(with_file(&["renew", "--ttl=20s"])).await;
    assert_eq!(
        (renewed.code, renewed.stdout.as_str()),
        (Some(0), ""),
        "{renewed:?}"
    );
    let after = fs::read_to_string(&file).expect("it is written");
    assert!(
        before.contains("\"10s\"") && after.contains("\"20s\""),
        "{before} {after}"
    );
    let released = run_command(with_file(&["release"])).await;
    assert_eq!(
        (released.code, released.stdout.as_str()),
        (Some(0), "released\n")
    );
    let files = fs::read_dir(cli.home.path()).expect("a home").count();
    assert_eq!(files, 1, "only the lease");
    broker.stop().await;
}

#[tokio::test]
async fn invalid_leases_are_rejected_without_being_printed() {
    let (broker, cli) = start_broker().await;
    let ran = cli
        .run_with(&["renew"], "{\"lease_id\": \"x\", \"lease_token\": 12345}")
        .await;
    let reason = "leasehold: stdin does not contain a lease as written by `leasehold acquire` (line \
        1, column 38)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(125), reason));
    let ran = cli.run(&["release", "--lease-file=/no/such/file"]).await;
    let reason = "leasehold: cannot read a lease from /no/such/file: No such file or directory (os error 2)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(125), reason));
    broker.stop().await;
}

#[tokio::test]
async fn an_acquire_waits_in_the_queue_and_prints_a_lease_with_its_remaining_time() {
    let (broker, cli) = start_broker().await;
    let other = sdk(&broker, "other").await;
    let guard = other.lock("a").acquire().await.expect("free");
    let busy = cli.run(&["acquire", "-n", "a"]).await;
    assert_eq!((busy.code, busy.stdout.as_str()), (Some(124), ""));
    let late = cli.run(&["acquire", "--wait=300ms", "-E=9", "a"]).await;
    assert_eq!((late.code, late.stdout.as_str()), (Some(9), ""));
    let waiting = cli.start(&["acquire", "a", "--ttl=2s"]);
    let observer = Client::new("observer", &[broker.api], 0);
    observer.wait_for_queue_length_at(0, "a", 1).await;
    // The pause exceeds half of the TTL.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    guard.release().await.expect("held");
    let ran = waiting.wait_for_exit().await;
    let lease = parse_output(&ran);
    let files = observer
        .get_lock("a")
        .await
        .expect("an answer")
        .expect("held");
    let files = files.holders[0].remaining.expect("a holder has time left");
    let files = Duration::try_from(files).expect("positive");
    // The lease is renewed after the grant, so most of the TTL remains.
    assert!(files > Duration::from_millis(2_000), "{files:?}");
    let released = cli.run_with(&["release"], &ran.stdout).await;
    assert_eq!(released.code, Some(0), "{lease}");
    other.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_lock_is_held_until_a_signal() {
    let (broker, cli) = start_broker().await;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut held = cli.start(&["hold", "a", "--ttl=1s"]);
        let line = held.next_stdout_line().await;
        assert!(line.starts_with("holding a with fencing token "), "{line}");
        // The pause exceeds the expiry without heartbeats.
        let started_at = boottime();
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let busy = cli.run(&["acquire", "-n", "a"]).await;
        assert_eq!(busy.code, Some(124), "after {:?}", boottime() - started_at);
        held.signal(signal);
        assert_eq!(held.wait_for_exit().await.code, Some(0));
        let free = parse_output(&cli.run(&["get", "a", "-o", "json"]).await);
        assert_eq!(free["state"], "free");
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_hold_prints_its_lease_without_the_secret_and_reports_its_loss() {
    let (broker, cli) = start_broker().await;
    let mut held = cli.start(&["hold", "a", "--ttl=2s", "--max-hold=4s", "-o=json"]);
    let mut json = String::new();
    while !json.ends_with("}\n") {
        json += &held.next_stdout_line().await;
        json.push('\n');
    }
    assert_golden("hold", &serde_json::from_str(&json).expect("JSON"));
    let ran = held.wait_for_exit().await;
    assert_eq!(ran.code, Some(123));
    assert!(
        ran.stderr
            .starts_with("leasehold: the lock \"a\" was lost: "),
        "{}",
        ran.stderr
    );
    broker.stop().await;
}
