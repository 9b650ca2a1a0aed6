//! `leasehold close`, `reserve` and `open`, and `--at-least`: output, exit codes, and effects on
//! acquires.

use leasehold_tests::{
    broker::in_process::InProcessBroker,
    process::leasehold_command::{Cli, CommandOutput},
    repository::golden::parse_output,
};
use serde_json::{Value, json};

struct Fixture {
    broker: InProcessBroker,
    cli: Cli,
    admin: String,
}

async fn start_fixture() -> Fixture {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    let admin = format!("--admin-endpoint=http://{}", broker.admin);
    Fixture { broker, cli, admin }
}

impl Fixture {
    async fn operate(&self, args: &[&str]) -> CommandOutput {
        self.cli.run(&[args, &[&self.admin]].concat()).await
    }

    async fn acquire(&self, flags: &[&str]) -> CommandOutput {
        self.cli
            .run(&[&["acquire", "a", "--owner=worker-9"], flags].concat())
            .await
    }

    async fn release(&self, lease: &Value) {
        let released = self.cli.run_with(&["release"], &lease.to_string()).await;
        assert_eq!(released.code, Some(0), "{released:?}");
    }
}

/// Asserts that the closure has just begun, and ends after this time.
fn assert_closed_for(closed: &Value, seconds: u64) {
    let remaining_ms = closed["closure"]["remaining_ms"].as_u64();
    let passed_ms =
        remaining_ms.and_then(|remaining_ms| (seconds * 1_000).checked_sub(remaining_ms));
    assert!(
        passed_ms.is_some_and(|passed_ms| passed_ms < 60_000),
        "{closed}"
    );
}

#[tokio::test]
async fn a_lock_is_closed_shown_and_opened() {
    let fixture = start_fixture().await;
    let close = ["close", "a", "--reason=freeze", "--for=2h"];
    let closed = parse_output(&fixture.operate(&[&close[..], &["-o=json"]].concat()).await);
    assert_eq!(
        (&closed["name"], &closed["closure"]["cause"]),
        (&json!("a"), &json!("operator"))
    );
    assert_closed_for(&closed, 7_200);
    let operator = closed["closure"]["owner"]
        .as_str()
        .expect("a name")
        .to_owned();
    let rejected = fixture.acquire(&["-n"]).await;
    assert_eq!(rejected.code, Some(124), "{rejected:?}");
    let by = format!(" (1h59m left) by an operator, {operator} (\"freeze\"). ");
    assert!(
        rejected
            .stderr
            .starts_with("leasehold: lock \"a\" is closed until "),
        "{rejected:?}"
    );
    assert!(rejected.stderr.contains(&by), "{rejected:?}");
    let timed_out = fixture.acquire(&["--wait=100ms"]).await;
    assert_eq!(timed_out.code, Some(124), "{timed_out:?}");
    assert!(timed_out.stderr.contains(&by), "{timed_out:?}");
    let shown = fixture.cli.run(&["get", "a"]).await.stdout;
    assert!(shown.starts_with("default/a: closed, "), "{shown}");
    assert!(shown.contains(" by an operator, "), "{shown}");
    let listed = fixture.cli.run(&["ls"]).await.stdout;
    assert!(
        listed.starts_with("a\tclosed\t0\tclosed until "),
        "{listed}"
    );
    let shorter = fixture
        .operate(&["close", "a", "--reason=other", "--for=1m"])
        .await;
    assert!(
        shorter.stdout.contains("(\"freeze\")"),
        "never shortened: {shorter:?}"
    );
    let opened = fixture.operate(&["open", "a"]).await;
    assert_eq!(opened.code, Some(0), "{opened:?}");
    assert!(
        opened.stdout.starts_with("a is open; it was closed until "),
        "{opened:?}"
    );
    let again = fixture.operate(&["open", "a"]).await;
    assert_eq!(
        (again.code, again.stdout.as_str()),
        (Some(0), "a was not closed\n")
    );
    assert_eq!(fixture.acquire(&["-n"]).await.code, Some(0));
    fixture.broker.stop().await;
}

#[tokio::test]
async fn a_reservation_waits_until_the_holders_have_left() {
    let fixture = start_fixture().await;
    let lease = parse_output(&fixture.acquire(&[]).await);
    let mut reserve = fixture.cli.start(&[
        "reserve",
        "a",
        "--reason=migration",
        "--for=10m",
        "-o=json",
        &fixture.admin,
    ]);
    let line = reserve.next_stderr_line().await;
    assert!(
        line.contains("\"a\" is closed, and still held by worker-9 "),
        "{line}"
    );
    let rejected = fixture.acquire(&["-n"]).await;
    assert!(
        rejected.stderr.contains("is held by worker-9 "),
        "{rejected:?}"
    );
    assert!(
        rejected.stderr.contains(", and closed until "),
        "{rejected:?}"
    );
    fixture.release(&lease).await;
    let reserved = parse_output(&reserve.wait_for_exit().await);
    assert_eq!(reserved["closure"]["reason"], json!("migration"));
    assert_closed_for(&reserved, 600);
    assert_eq!(fixture.acquire(&["-n"]).await.code, Some(124));
    fixture.broker.stop().await;
}

#[tokio::test]
async fn a_job_runs_once_a_period_however_it_ends() {
    let fixture = start_fixture().await;
    let job = |command| {
        let args = [
            "run",
            "-n",
            "--skip",
            "--at-least=1h",
            "a",
            "--owner=worker-9",
            "--",
        ];
        [&args[..], &["sh", "-c", command]].concat()
    };
    let first = fixture.cli.run(&job("echo ran; exit 3")).await;
    assert_eq!((first.code, first.stdout.as_str()), (Some(3), "ran\n"));
    let second = fixture.cli.run(&job("echo ran")).await;
    assert_eq!(
        (second.code, second.stdout.as_str()),
        (Some(0), ""),
        "{second:?}"
    );
    assert!(
        second
            .stderr
            .contains("by the at_least of a lease, worker-9"),
        "{second:?}"
    );
    assert_eq!(fixture.operate(&["open", "a"]).await.code, Some(0));
    let killed = fixture.cli.run(&job("kill -KILL $$")).await;
    assert_eq!(killed.code, Some(137), "{killed:?}");
    let third = fixture.cli.run(&job("echo ran")).await;
    assert_eq!(
        (third.code, third.stdout.as_str()),
        (Some(0), ""),
        "{third:?}"
    );
    fixture.broker.stop().await;
}

#[tokio::test]
async fn bad_input_is_named() {
    let fixture = start_fixture().await;
    for (args, expected) in [
        (vec!["close", "a", "--reason=r"], "--for <TIME>"),
        (
            vec!["close", "a", "--reason=r", "--for=32d"],
            "duration must be at most 31 days from now",
        ),
        (
            vec!["close", "a", "--reason=r", "--until=2020-01-01T00:00:00Z"],
            "until_time must not be in the past",
        ),
        (
            vec!["close", "a", "--reason=r", "--until=tomorrow"],
            "expected a moment such as",
        ),
        (
            vec!["close", "a", "--reason=", "--for=1m"],
            "reason must be 1 to 512 bytes",
        ),
        (
            vec!["acquire", "a", "--at-least=1s"],
            "at_least must not be shorter than ttl",
        ),
        (
            vec!["acquire", "a", "--at-least=25h"],
            "at_least must be at most limits.at_least_max",
        ),
    ] {
        let failed = fixture.operate(&args).await;
        assert_eq!(failed.code, Some(125), "{args:?}: {failed:?}");
        assert!(failed.stderr.contains(expected), "{args:?}: {failed:?}");
    }
    fixture.broker.stop().await;
}
