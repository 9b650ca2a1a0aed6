//! `leasehold force-release` and `watch`: output, exit codes, and effects on the holders.

use std::time::Duration;

use leasehold_tests::{
    broker::in_process::InProcessBroker,
    process::leasehold_command::{Cli, RunningCommand},
    repository::golden::parse_output,
};
use serde_json::{Value, json};
use tokio::time::timeout;

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
    async fn acquire(&self, name: &str) -> Value {
        let args = ["acquire", name, "--owner=worker-9"];
        parse_output(&self.cli.run(&args).await)
    }

    async fn release(&self, lease: &Value) {
        let released = self.cli.run_with(&["release"], &lease.to_string()).await;
        assert_eq!(released.code, Some(0), "{released:?}");
    }

    async fn force(
        &self,
        lease_id: &str,
        flags: &[&str],
    ) -> leasehold_tests::process::leasehold_command::CommandOutput {
        let args = [
            "force-release",
            "a",
            lease_id,
            "--reason=it hangs",
            &self.admin,
        ];
        self.cli.run(&[&args, flags].concat()).await
    }
}

#[tokio::test]
async fn a_lease_is_inspected_revoked_and_gone() {
    let fixture = start_fixture().await;
    let lease = fixture.acquire("a").await;
    let id = lease["lease_id"].as_str().expect("text");
    let forced = fixture.force(id, &[]).await;
    let reason = "leasehold: force-release revokes a lease that may be in use; without a terminal, \
        confirm it with --yes\n";
    assert_eq!((forced.code, forced.stderr.as_str()), (Some(125), reason));
    let would = fixture.force(id, &["--dry-run"]).await;
    let expected = format!("the lease {id} of worker-9 since ");
    assert!(would.stdout.starts_with(&expected), "{would:?}");
    assert!(
        would.stdout.ends_with(" would be revoked; 0 waiting\n"),
        "{would:?}"
    );
    let renewed = fixture.cli.run_with(&["renew"], &lease.to_string()).await;
    assert_eq!(renewed.code, Some(0), "nothing was done: {renewed:?}");
    let taken = parse_output(&fixture.force(id, &["--yes", "-o=json"]).await);
    assert_eq!(taken["is_done"], json!(true));
    assert_eq!(taken["queue_length"], json!(0));
    let holder = &taken["holder"];
    assert_eq!(
        (&holder["lease_id"], &holder["owner"]),
        (&json!(id), &json!("worker-9"))
    );
    assert_eq!(holder["fencing_token"], lease["locks"][0]["fencing_token"]);
    let renewed = fixture.cli.run_with(&["renew"], &lease.to_string()).await;
    assert_eq!(renewed.code, Some(123), "{renewed:?}");
    assert!(
        renewed.stderr.contains("revoked the lease: it hangs"),
        "{renewed:?}"
    );
    let now = parse_output(
        &fixture
            .force(id, &["--yes", "--unsafe-now", "-o=json"])
            .await,
    );
    assert_eq!(now["is_done"], json!(true));
    let next = fixture.acquire("a").await;
    let released = fixture.cli.run_with(&["release"], &lease.to_string()).await;
    assert_eq!(released.code, Some(123), "{released:?}");
    let renewed = fixture.cli.run_with(&["renew"], &next.to_string()).await;
    assert_eq!(
        renewed.code,
        Some(0),
        "the next lease is not hit: {renewed:?}"
    );
    fixture.broker.stop().await;
}

#[tokio::test]
async fn a_rejected_force_release_names_its_reason() {
    let fixture = start_fixture().await;
    let lease = fixture.acquire("a").await;
    let id = lease["lease_id"].as_str().expect("text");
    fixture.release(&lease).await;
    let over = fixture.force(id, &["--yes"]).await;
    assert_eq!((over.code, over.stdout.as_str()), (Some(123), ""));
    assert!(
        over.stderr
            .contains("the lease was already released: there is nothing"),
        "{over:?}"
    );
    let wrong = fixture.force("L", &["--yes"]).await;
    assert_eq!(wrong.code, Some(125));
    assert!(
        wrong
            .stderr
            .starts_with("leasehold: cannot revoke the lease L: "),
        "{wrong:?}"
    );
    assert!(
        wrong.stderr.contains("lease_id must be the id of a lease"),
        "{wrong:?}"
    );
    fixture.broker.stop().await;
}

#[tokio::test]
async fn a_command_ends_when_its_lock_is_revoked() {
    let fixture = start_fixture().await;
    let running = fixture
        .cli
        .start(&["run", "a", "--owner=worker-9", "--", "sleep", "60"]);
    let held = leasehold_tests::until::until("the lock is held", async || {
        let shown = parse_output(&fixture.cli.run(&["get", "a", "-o=json"]).await);
        let id = shown["holders"][0]["lease_id"].as_str();
        id.map(str::to_owned)
    });
    let id = held.await;
    assert_eq!(fixture.force(&id, &["--yes"]).await.code, Some(0));
    let ran = running.wait_for_exit().await;
    assert_eq!(ran.code, Some(123), "{ran:?}");
    assert!(ran.stderr.contains("it hangs"), "{ran:?}");
    fixture.broker.stop().await;
}

/// Starts `leasehold watch` and waits until it has printed a change, so that it receives all later
/// changes.
async fn watching(fixture: &Fixture, args: &[&str]) -> RunningCommand {
    let mut watch = fixture.cli.start(&[&["watch"], args].concat());
    loop {
        // A watch does not receive changes from before the broker has accepted it.
        let lease = fixture.acquire("x-first").await;
        fixture.release(&lease).await;
        let line = timeout(Duration::from_millis(300), watch.next_stdout_line()).await;
        if line.is_ok() {
            return watch;
        }
    }
}

/// Waits for the next line that contains `name`.
async fn line_about(watch: &mut RunningCommand, name: &str) -> String {
    loop {
        let line = watch.next_stdout_line().await;
        if line.contains(name) {
            return line;
        }
    }
}

#[tokio::test]
async fn changes_are_printed_as_they_happen() {
    let fixture = start_fixture().await;
    let mut text = watching(&fixture, &[]).await;
    let mut lines = watching(&fixture, &["-o=json"]).await;
    let mut other = watching(&fixture, &["x"]).await;
    let lease = fixture.acquire("a").await;
    fixture.release(&lease).await;
    let named = ["acquire", "xy", "--owner=worker-9"];
    assert_eq!(fixture.cli.run(&named).await.code, Some(0));

    for change in ["acquired", "released"] {
        let line = line_about(&mut text, "default/a ").await;
        let expected_event = format!(" {change} default/a worker-9 ");
        assert!(line.contains(&expected_event), "{line}");
        let line = line_about(&mut lines, "\"a\"").await;
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(line["type"], json!(change));
        assert_eq!(line["name"], json!("a"));
        assert_eq!(line["subject"]["owner"], json!("worker-9"));
        assert_eq!(line["subject"]["lease_id"], lease["lease_id"]);
    }
    loop {
        let line = other.next_stdout_line().await;
        assert!(!line.contains("default/a "), "{line}");
        if line.contains(" acquired default/xy worker-9 ") {
            break;
        }
    }
    fixture.broker.stop().await;
}
