//! Control characters in names, owners, reasons and labels. None of them reaches a terminal,
//! neither as a control character nor as a change of text direction or a separate line.

use leasehold::{Client as Sdk, Guard};
use leasehold_proto::text::is_hidden;
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    process::leasehold_command::{Cli, CommandOutput, RunningCommand},
    repository::golden::parse_output,
    until::until,
};
use serde_json::json;

/// Lock name with invisible characters. A name must not contain control characters.
const NAME: &str = "a\u{202E}\u{2066}\u{200B}\u{2028}\u{FEFF}b";
/// Text with control characters, which are valid in all other fields.
const TEXT: &str = "x\u{1B}]0;title\u{7}\u{9B}2J\u{7F}\u{202E}\u{200B}\u{2029}\r\n{\"forged\":1}";

struct Fixture {
    broker: InProcessBroker,
    cli: Cli,
}

impl Fixture {
    async fn start() -> Self {
        let broker = InProcessBroker::start().await;
        let cli = Cli::for_broker(broker.api);
        Self { broker, cli }
    }

    /// Acquires the lock as another process.
    async fn acquire_elsewhere(&self) -> (Sdk, Guard) {
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
            let shown = parse_output(&self.cli.run(&["get", NAME, "-o=json"]).await);
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
        assert_clean("force-release", &revoked);
    }
}

fn assert_clean(what: &str, ran: &CommandOutput) {
    for text in [&ran.stdout, &ran.stderr] {
        let hidden = text.chars().find(|c| is_hidden(*c) && !"\n\t".contains(*c));
        assert_eq!(hidden, None, "{what}: {text:?}");
        let is_forged = |line: &str| line.starts_with("{\"forged");
        assert!(!text.lines().any(is_forged), "{what}: {text}");
    }
}

#[tokio::test]
async fn locks_of_others_are_shown_without_hidden_characters() {
    let fixture = Fixture::start().await;
    let (other, guard) = fixture.acquire_elsewhere().await;
    for args in [
        &["ls"][..],
        &["ls", "-o=wide", "-A"],
        &["ls", "-o=name"],
        &["get", NAME],
        &["acquire", "-n", NAME],
        &["run", "-n", NAME, "--", "true"],
        &["hold", "-n", NAME],
    ] {
        let ran = fixture.cli.run(args).await;
        assert_clean(args[0], &ran);
        let shown = ran.stdout + &ran.stderr;
        // Quoted names are escaped as in Rust.
        let is_shown = shown.contains("‹U+202E›") || shown.contains("\\u{202e}");
        assert!(is_shown, "{args:?}: {shown}");
    }
    for args in [&["ls", "-o=json"][..], &["get", NAME, "-o=json"]] {
        let ran = fixture.cli.run(args).await;
        assert_clean(args[0], &ran);
        let shown = parse_output(&ran);
        let lock = if shown.is_array() { &shown[0] } else { &shown };
        let holder = &lock["holders"][0];
        assert_eq!(lock["name"], json!(NAME), "{args:?}");
        assert_eq!(holder["owner"], json!(TEXT), "{args:?}");
        assert_eq!(holder["labels"]["team"], json!(TEXT), "{args:?}");
    }
    guard.release().await.expect("held");
    other.shutdown().await;
    fixture.broker.stop().await;
}

#[tokio::test]
async fn reasons_of_operators_are_shown_without_hidden_characters() {
    let fixture = Fixture::start().await;
    for args in [
        &["run", NAME, "--", "sleep", "60"][..],
        &["hold", NAME],
        &["hold", NAME, "-o=json"],
    ] {
        let running: RunningCommand = fixture.cli.start(args);
        fixture.revoke().await;
        let ran = running.wait_for_exit().await;
        assert_eq!(ran.code, Some(123), "{ran:?}");
        assert_clean(args[0], &ran);
        assert!(ran.stderr.contains("x‹U+001B›]0;title‹U+0007›"), "{ran:?}");
    }
    fixture.broker.stop().await;
}
