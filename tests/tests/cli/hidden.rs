//! Names, owners, reasons and labels of others: none of them reaches a terminal as a control character, as a
//! change of direction, or as a line of its own.

use leasehold::{Client as Sdk, Guard};
use leasehold_proto::text::is_hidden;
use leasehold_tests::{
    cli::{Cli, Ran, Running},
    golden::parsed,
    in_process::InProcess,
    until::until,
};
use serde_json::json;

/// A name may have no control characters.
const NAME: &str = "a\u{202E}\u{2066}\u{200B}\u{2028}\u{FEFF}b";
/// Other texts may.
const TEXT: &str = "x\u{1B}]0;title\u{7}\u{9B}2J\u{7F}\u{202E}\u{200B}\u{2029}\r\n{\"forged\":1}";

struct Scene {
    broker: InProcess,
    cli: Cli,
}

impl Scene {
    async fn start() -> Self {
        let broker = InProcess::start().await;
        let cli = Cli::at(broker.api);
        Self { broker, cli }
    }

    /// Acquires the lock in the name of another process.
    async fn held_by_another(&self) -> (Sdk, Guard) {
        let url = format!("http://{}", self.broker.api);
        let other = Sdk::builder(&url).owner(TEXT).connect().await;
        let other = other.expect("a broker that runs");
        let lock = other.lock(NAME).reason(TEXT).label("team", TEXT);
        let guard = lock.acquire().await.expect("free");
        (other, guard)
    }

    /// Revokes the lease that holds the lock, with a reason for the holder.
    async fn revoke(&self) {
        let admin = format!("--admin-endpoint=http://{}", self.broker.admin);
        let id = until("the lock is held", async || {
            let shown = parsed(&self.cli.run(&["get", NAME, "-o=json"]).await);
            shown["holders"][0]["lease_id"].as_str().map(str::to_owned)
        })
        .await;
        let args = [
            "force-release",
            NAME,
            &id,
            "--reason",
            TEXT,
            &admin,
            "--yes",
        ];
        let revoked = self.cli.run(&args).await;
        assert_eq!(revoked.code, Some(0), "{revoked:?}");
        is_clean("force-release", &revoked);
    }
}

fn is_clean(what: &str, ran: &Ran) {
    for text in [&ran.stdout, &ran.stderr] {
        let hidden = text.chars().find(|c| is_hidden(*c) && !"\n\t".contains(*c));
        assert_eq!(hidden, None, "{what}: {text:?}");
        let is_forged = |line: &str| line.starts_with("{\"forged");
        assert!(!text.lines().any(is_forged), "{what}: {text}");
    }
}

#[tokio::test]
async fn locks_of_others_are_shown_without_hidden_characters() {
    let scene = Scene::start().await;
    let (other, guard) = scene.held_by_another().await;
    for args in [
        &["ls"][..],
        &["ls", "-o=wide", "-A"],
        &["ls", "-o=name"],
        &["get", NAME],
        &["acquire", "-n", NAME],
        &["run", "-n", NAME, "--", "true"],
        &["hold", "-n", NAME],
    ] {
        let ran = scene.cli.run(args).await;
        is_clean(args[0], &ran);
        let shown = ran.stdout + &ran.stderr;
        // Names in quotes are written as Rust writes them.
        let is_shown = shown.contains("‹U+202E›") || shown.contains("\\u{202e}");
        assert!(is_shown, "{args:?}: {shown}");
    }
    for args in [&["ls", "-o=json"][..], &["get", NAME, "-o=json"]] {
        let ran = scene.cli.run(args).await;
        is_clean(args[0], &ran);
        let shown = parsed(&ran);
        let lock = if shown.is_array() { &shown[0] } else { &shown };
        let holder = &lock["holders"][0];
        assert_eq!(lock["name"], json!(NAME), "{args:?}");
        assert_eq!(holder["owner"], json!(TEXT), "{args:?}");
        assert_eq!(holder["labels"]["team"], json!(TEXT), "{args:?}");
    }
    guard.release().await.expect("held");
    other.shutdown().await;
    scene.broker.stop().await;
}

#[tokio::test]
async fn reasons_of_operators_are_shown_without_hidden_characters() {
    let scene = Scene::start().await;
    for args in [
        &["run", NAME, "--", "sleep", "60"][..],
        &["hold", NAME],
        &["hold", NAME, "-o=json"],
    ] {
        let running: Running = scene.cli.start(args);
        scene.revoke().await;
        let ran = running.ended().await;
        assert_eq!(ran.code, Some(123), "{ran:?}");
        is_clean(args[0], &ran);
        assert!(ran.stderr.contains("x‹U+001B›]0;title‹U+0007›"), "{ran:?}");
    }
    scene.broker.stop().await;
}
