//! `leasehold force-release` and `watch`: what they print and end with, and what becomes of those hit.

use std::time::Duration;

use leasehold_tests::{
    cli::{Cli, Running},
    golden::parsed,
    in_process::InProcess,
};
use serde_json::{Value, json};
use tokio::time::timeout;

struct Scene {
    broker: InProcess,
    cli: Cli,
    admin: String,
}

async fn started() -> Scene {
    let broker = InProcess::start().await;
    let cli = Cli::at(broker.api);
    let admin = format!("--admin-endpoint=http://{}", broker.admin);
    Scene { broker, cli, admin }
}

impl Scene {
    async fn acquire(&self, name: &str) -> Value {
        let args = ["acquire", name, "--owner=worker-9"];
        parsed(&self.cli.run(&args).await)
    }

    async fn release(&self, lease: &Value) {
        let released = self.cli.run_with(&["release"], &lease.to_string()).await;
        assert_eq!(released.code, Some(0), "{released:?}");
    }

    async fn force(&self, lease_id: &str, flags: &[&str]) -> leasehold_tests::cli::Ran {
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
async fn a_lease_is_looked_at_taken_away_and_gone() {
    let scene = started().await;
    let lease = scene.acquire("a").await;
    let id = lease["lease_id"].as_str().expect("text");
    let asked = scene.force(id, &[]).await;
    let why = "leasehold: force-release takes a lock from somebody who may be at work; \
               without a terminal to ask on it needs --yes\n";
    assert_eq!((asked.code, asked.stderr.as_str()), (Some(125), why));
    let would = scene.force(id, &["--dry-run"]).await;
    let said = format!("the lease {id} of worker-9 since ");
    assert!(would.stdout.starts_with(&said), "{would:?}");
    assert!(
        would.stdout.ends_with(" would be taken away; 0 waiting\n"),
        "{would:?}"
    );
    let renewed = scene.cli.run_with(&["renew"], &lease.to_string()).await;
    assert_eq!(renewed.code, Some(0), "nothing was done: {renewed:?}");
    let taken = parsed(&scene.force(id, &["--yes", "-o=json"]).await);
    assert_eq!(taken["is_done"], json!(true));
    assert_eq!(taken["queue_length"], json!(0));
    let holder = &taken["holder"];
    assert_eq!(
        (&holder["lease_id"], &holder["owner"]),
        (&json!(id), &json!("worker-9"))
    );
    assert_eq!(holder["fencing_token"], lease["locks"][0]["fencing_token"]);
    let renewed = scene.cli.run_with(&["renew"], &lease.to_string()).await;
    assert_eq!(renewed.code, Some(123), "{renewed:?}");
    assert!(
        renewed.stderr.contains("revoked the lease: it hangs"),
        "{renewed:?}"
    );
    let now = parsed(&scene.force(id, &["--yes", "--unsafe-now", "-o=json"]).await);
    assert_eq!(now["is_done"], json!(true));
    let next = scene.acquire("a").await;
    let released = scene.cli.run_with(&["release"], &lease.to_string()).await;
    assert_eq!(released.code, Some(123), "{released:?}");
    let renewed = scene.cli.run_with(&["renew"], &next.to_string()).await;
    assert_eq!(
        renewed.code,
        Some(0),
        "the next lease is not hit: {renewed:?}"
    );
    scene.broker.stop().await;
}

#[tokio::test]
async fn what_cannot_be_taken_away_says_why() {
    let scene = started().await;
    let lease = scene.acquire("a").await;
    let id = lease["lease_id"].as_str().expect("text");
    scene.release(&lease).await;
    let over = scene.force(id, &["--yes"]).await;
    assert_eq!((over.code, over.stdout.as_str()), (Some(123), ""));
    assert!(
        over.stderr
            .contains("the lease was given back: nothing is left"),
        "{over:?}"
    );
    let wrong = scene.force("L", &["--yes"]).await;
    assert_eq!(wrong.code, Some(125));
    assert!(
        wrong
            .stderr
            .starts_with("leasehold: cannot take the lease L away: "),
        "{wrong:?}"
    );
    assert!(
        wrong.stderr.contains("lease_id must be the id of a lease"),
        "{wrong:?}"
    );
    scene.broker.stop().await;
}

#[tokio::test]
async fn a_command_ends_when_its_lock_is_taken_away() {
    let scene = started().await;
    let running = scene
        .cli
        .start(&["run", "a", "--owner=worker-9", "--", "sleep", "60"]);
    let held = leasehold_tests::until::until("the lock is held", async || {
        let shown = parsed(&scene.cli.run(&["get", "a", "-o=json"]).await);
        let id = shown["holders"][0]["lease_id"].as_str();
        id.map(str::to_owned)
    });
    let id = held.await;
    assert_eq!(scene.force(&id, &["--yes"]).await.code, Some(0));
    let ran = running.ended().await;
    assert_eq!(ran.code, Some(123), "{ran:?}");
    assert!(ran.stderr.contains("it hangs"), "{ran:?}");
    scene.broker.stop().await;
}

/// A `leasehold watch` that has printed something: it hears all that begins from here on.
async fn watching(scene: &Scene, args: &[&str]) -> Running {
    let mut watch = scene.cli.start(&[&["watch"], args].concat());
    loop {
        // What changes before the broker has answered a watch is not told to it.
        let lease = scene.acquire("x-first").await;
        scene.release(&lease).await;
        let heard = timeout(Duration::from_millis(300), watch.line()).await;
        if heard.is_ok() {
            return watch;
        }
    }
}

/// The next line that is about the lock.
async fn about(watch: &mut Running, name: &str) -> String {
    loop {
        let line = watch.line().await;
        if line.contains(name) {
            return line;
        }
    }
}

#[tokio::test]
async fn changes_are_printed_as_they_happen() {
    let scene = started().await;
    let mut text = watching(&scene, &[]).await;
    let mut lines = watching(&scene, &["-o=json"]).await;
    let mut other = watching(&scene, &["x"]).await;
    let lease = scene.acquire("a").await;
    scene.release(&lease).await;
    let named = ["acquire", "xy", "--owner=worker-9"];
    assert_eq!(scene.cli.run(&named).await.code, Some(0));

    for change in ["acquired", "released"] {
        let heard = about(&mut text, "default/a ").await;
        let told = format!(" {change} default/a worker-9 ");
        assert!(heard.contains(&told), "{heard}");
        let line = about(&mut lines, "\"a\"").await;
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(line["type"], json!(change));
        assert_eq!(line["name"], json!("a"));
        assert_eq!(line["subject"]["owner"], json!("worker-9"));
        assert_eq!(line["subject"]["lease_id"], lease["lease_id"]);
    }
    loop {
        let heard = other.line().await;
        assert!(!heard.contains("default/a "), "{heard}");
        if heard.contains(" acquired default/xy worker-9 ") {
            break;
        }
    }
    scene.broker.stop().await;
}
