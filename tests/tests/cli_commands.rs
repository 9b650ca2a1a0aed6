//! The commands of `leasehold` besides `run`: what each does at a broker, prints, and ends with; each
//! JSON against a golden file.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use leasehold::Client as Sdk;
use leasehold_tests::{
    cli::{Cli, Ran},
    client::Client,
    clock::boottime,
    in_process::InProcess,
};
use rustix::process::Signal;
use serde_json::Value;

/// Values that differ from run to run; what is left of them is their type.
const CHANGING: [&str; 14] = [
    "acquire_time",
    "endpoint",
    "expire_time",
    "fencing_token",
    "last_fencing_token",
    "lease_id",
    "lease_token",
    "owner",
    "remaining",
    "remaining_ms",
    "round_trip",
    "round_trip_ms",
    "since_time",
    "version",
];

async fn started() -> (InProcess, Cli) {
    let broker = InProcess::start().await;
    let cli = Cli::at(broker.api);
    (broker, cli)
}

async fn sdk(broker: &InProcess, owner: &str) -> Sdk {
    let client = Sdk::builder(&format!("http://{}", broker.api)).owner(owner);
    client.connect().await.expect("a broker that runs")
}

fn parsed(ran: &Ran) -> Value {
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Compares the shape with the file of that name.
fn is_golden(name: &str, value: &Value) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/cli/{name}.json"));
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let golden: Value = serde_json::from_str(&golden).unwrap_or_default();
    let found = without_changing(value);
    let shown = serde_json::to_string_pretty(&found).expect("JSON");
    assert_eq!(found, golden, "{}:\n{shown}", path.display());
}

fn without_changing(value: &Value) -> Value {
    let kind = |value: &Value| match value {
        Value::Null => "<nothing>",
        Value::Bool(_) => "<truth>",
        Value::Number(_) => "<number>",
        Value::String(_) => "<text>",
        Value::Array(_) | Value::Object(_) => "<more>",
    };
    match value {
        Value::Array(values) => values.iter().map(without_changing).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let is_changing = CHANGING.contains(&name.as_str());
                let value = if is_changing {
                    kind(value).into()
                } else {
                    without_changing(value)
                };
                (name.clone(), value)
            });
            Value::Object(fields.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[tokio::test]
async fn a_lease_goes_from_call_to_call() {
    let (broker, cli) = started().await;
    let args = [
        "acquire",
        "a",
        "--permits=2/3",
        "--ttl=20s",
        "--reason=why",
        "--label=team=x",
    ];
    let acquired = cli.run(&args).await;
    let lease = parsed(&acquired);
    is_golden("acquire", &lease);
    let renewed = cli
        .run_with(&["renew", "--ttl=30s"], &acquired.stdout)
        .await;
    let renewed = parsed(&renewed);
    assert_eq!(renewed["ttl_ms"], 30_000);
    assert_eq!(renewed["locks"], lease["locks"]);
    assert_eq!(renewed["lease_token"], lease["lease_token"]);
    let released = cli
        .run_with(&["release", "-o=json"], &renewed.to_string())
        .await;
    let released = parsed(&released);
    is_golden("release", &released);
    assert_eq!(released["lease_id"], lease["lease_id"]);
    let again = cli.run_with(&["release"], &renewed.to_string()).await;
    assert_eq!(
        (again.code, again.stdout.as_str()),
        (Some(0), "it was released before\n")
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
    let (broker, cli) = started().await;
    let file = cli.home.path().join("lease");
    let with_file = |args: &[&str]| {
        let mut command = cli.command(args);
        command.env("LEASEHOLD_LEASE_FILE", &file);
        command
    };
    let acquired = leasehold_tests::cli::ran(with_file(&["acquire", "a", "--lock=b"])).await;
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
    is_golden("acquire_several", &value);
    let renewed = leasehold_tests::cli::ran(with_file(&["renew", "--ttl=20s"])).await;
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
    let released = leasehold_tests::cli::ran(with_file(&["release"])).await;
    assert_eq!(
        (released.code, released.stdout.as_str()),
        (Some(0), "released\n")
    );
    let left = fs::read_dir(cli.home.path()).expect("a home").count();
    assert_eq!(left, 1, "only the lease");
    broker.stop().await;
}

#[tokio::test]
async fn what_is_no_lease_is_refused_without_being_shown() {
    let (broker, cli) = started().await;
    let ran = cli
        .run_with(&["renew"], "{\"lease_id\": \"x\", \"lease_token\": 12345}")
        .await;
    let why =
        "leasehold: stdin has no lease as `leasehold acquire` writes it (line 1, column 38)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(125), why));
    let ran = cli.run(&["release", "--lease-file=/no/such/file"]).await;
    let why = "leasehold: cannot read a lease from /no/such/file: No such file or directory (os error 2)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(125), why));
    broker.stop().await;
}

#[tokio::test]
async fn an_acquire_waits_in_line_and_prints_a_lease_with_time_left() {
    let (broker, cli) = started().await;
    let other = sdk(&broker, "other").await;
    let guard = other.lock("a").acquire().await.expect("free");
    let busy = cli.run(&["acquire", "-n", "a"]).await;
    assert_eq!((busy.code, busy.stdout.as_str()), (Some(124), ""));
    let late = cli.run(&["acquire", "--wait=300ms", "-E=9", "a"]).await;
    assert_eq!((late.code, late.stdout.as_str()), (Some(9), ""));
    let waiting = cli.start(&["acquire", "a", "--ttl=2s"]);
    let observer = Client::new("observer", &[broker.api], 0);
    observer.queued_at(0, "a", 1).await;
    // Longer than half of its ttl.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    guard.release().await.expect("held");
    let ran = waiting.ended().await;
    let lease = parsed(&ran);
    let left = observer
        .get_lock("a")
        .await
        .expect("an answer")
        .expect("held");
    let left = left.holders[0].remaining.expect("a holder has time left");
    let left = Duration::try_from(left).expect("positive");
    // Renewed after the grant, so most of it is left.
    assert!(left > Duration::from_millis(2_000), "{left:?}");
    let released = cli.run_with(&["release"], &ran.stdout).await;
    assert_eq!(released.code, Some(0), "{lease}");
    other.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_lock_is_held_until_a_signal() {
    let (broker, cli) = started().await;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut held = cli.start(&["hold", "a", "--ttl=1s"]);
        let line = held.line().await;
        assert!(line.starts_with("holding a with fencing token "), "{line}");
        // Longer than the store would keep it without heartbeats.
        let begun = boottime();
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let busy = cli.run(&["acquire", "-n", "a"]).await;
        assert_eq!(busy.code, Some(124), "after {:?}", boottime() - begun);
        held.signal(signal);
        assert_eq!(held.ended().await.code, Some(0));
        let free = parsed(&cli.run(&["get", "a", "-o", "json"]).await);
        assert_eq!(free["state"], "free");
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_hold_prints_its_lease_without_the_secret_and_tells_of_its_loss() {
    let (broker, cli) = started().await;
    let mut held = cli.start(&["hold", "a", "--ttl=2s", "--max-hold=4s", "-o=json"]);
    let mut json = String::new();
    while !json.ends_with("}\n") {
        json += &held.line().await;
        json.push('\n');
    }
    is_golden("hold", &serde_json::from_str(&json).expect("JSON"));
    let ran = held.ended().await;
    assert_eq!(ran.code, Some(123));
    assert!(
        ran.stderr
            .starts_with("leasehold: the lock \"a\" was lost: "),
        "{}",
        ran.stderr
    );
    broker.stop().await;
}

#[tokio::test]
async fn one_lock_is_shown_with_holders_and_line() {
    let (broker, cli) = started().await;
    let free = cli.run(&["get", "a"]).await;
    assert_eq!(
        (free.code, free.stdout.as_str()),
        (Some(0), "a is free: nobody holds it or waits for it\n")
    );
    is_golden(
        "get_free",
        &parsed(&cli.run(&["get", "a", "-o=json"]).await),
    );
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("a")
        .reason("nightly \u{7}")
        .label("team", "x")
        .acquire()
        .await;
    let guard = guard.expect("free");
    let waiting = cli.start(&["run", "a", "--owner=next", "--", "true"]);
    let observer = Client::new("observer", &[broker.api], 0);
    observer.queued_at(0, "a", 1).await;
    is_golden("get", &parsed(&cli.run(&["get", "a", "-o=json"]).await));
    let shown = cli.run(&["get", "a"]).await.stdout;
    let lines: Vec<_> = shown.lines().collect();
    let [lock, held, lease, waits] = lines.as_slice() else {
        panic!("four lines: {shown}")
    };
    let token = guard.fencing_token();
    assert_eq!(
        *lock,
        format!("default/a: held, exclusive, newest fencing token {token}")
    );
    assert!(
        held.starts_with("  held by worker-9 (\"nightly  \") since "),
        "{held}"
    );
    assert!(
        lease.starts_with(&format!("    lease {}, token {token}, ", guard.lease_id())),
        "{lease}"
    );
    assert!(lease.ends_with(" left team=x"), "{lease}");
    assert!(
        waits.starts_with("  1. waits: next (\"true\") since "),
        "{waits}"
    );
    guard.release().await.expect("held");
    assert_eq!(waiting.ended().await.code, Some(0));
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_fencing_token_is_checked() {
    let (broker, cli) = started().await;
    let lease = parsed(&cli.run(&["acquire", "a"]).await);
    let token = lease["locks"][0]["fencing_token"].to_string();
    let live = cli.run(&["check-token", "a", &token, "-o=json"]).await;
    is_golden("check_token", &parsed(&live));
    let live = cli.run(&["check-token", "a", &token]).await;
    assert!(
        live.stdout.starts_with("live, ") && live.stdout.ends_with(" left\n"),
        "{live:?}"
    );
    for (name, token) in [("a", "7"), ("nobody", "7")] {
        let stale = cli.run(&["check-token", name, token]).await;
        assert_eq!(
            (stale.code, stale.stdout.as_str()),
            (Some(123), ""),
            "{stale:?}"
        );
        assert!(
            stale
                .stderr
                .starts_with(&format!("leasehold: token 7 of {name:?}: ")),
            "{stale:?}"
        );
    }
    let stale = cli.run(&["check-token", "a", "7", "-o=json"]).await;
    assert_eq!(stale.code, Some(123));
    let stale: Value = serde_json::from_str(&stale.stdout).expect("JSON");
    assert_eq!(stale["is_live"], false);
    broker.stop().await;
}

#[tokio::test]
async fn calls_that_the_broker_does_not_have_yet_say_so() {
    let (broker, cli) = started().await;
    let admin = format!("--admin-endpoint=http://{}", broker.admin);
    let api = &cli.endpoint;
    let scenes = [
        (vec!["ls"], "cannot list locks", api.clone(), "ListLocks"),
        (
            vec!["ls", "-A", "x", "-o=wide"],
            "cannot list locks",
            api.clone(),
            "ListLocks",
        ),
        (
            vec!["watch", "-o=json"],
            "cannot watch locks",
            api.clone(),
            "WatchLocks",
        ),
        (
            vec!["force-release", "a", "L", "--reason=x", "--yes", &admin],
            "cannot take the lease L away",
            format!("http://{}", broker.admin),
            "ForceReleaseLease",
        ),
    ];
    for (args, what, broker, call) in scenes {
        let ran = cli.run(&args).await;
        let why = format!(
            "leasehold: {what}: the broker at {broker} says: {call} is not in this release of the broker (Unimplemented)\n"
        );
        assert_eq!(
            (ran.code, ran.stdout.as_str(), ran.stderr),
            (Some(125), "", why)
        );
    }
    let ran = cli.run(&["force-release", "a", "L", "--reason=x"]).await;
    let why = "leasehold: force-release takes a lock from somebody who may be at work; \
               without a terminal to ask on it needs --yes\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(125), why));
    broker.stop().await;
}

#[tokio::test]
async fn every_broker_is_asked_whether_it_serves() {
    let (broker, mut cli) = started().await;
    let ping = cli.run(&["ping"]).await;
    let start = format!("{}: serves, answered in ", cli.endpoint);
    assert!(ping.stdout.starts_with(&start), "{ping:?}");
    is_golden("ping", &parsed(&cli.run(&["ping", "-o=json"]).await));
    cli.endpoint += ", http://127.0.0.1:1";
    let ping = cli.run(&["ping"]).await;
    assert_eq!(ping.code, Some(125));
    let lines: Vec<_> = ping.stdout.lines().collect();
    assert!(lines[0].starts_with(&start), "{ping:?}");
    assert!(
        lines[1].starts_with("http://127.0.0.1:1: http://127.0.0.1:1: transport error: "),
        "{ping:?}"
    );
    broker.stop().await;
}

#[tokio::test]
async fn version_and_completions() {
    let cli = Cli::at("127.0.0.1:1");
    let version = cli.run(&["version", "-o=json"]).await;
    is_golden("version", &parsed(&version));
    let version = cli.run(&["version"]).await;
    assert_eq!(
        version.stdout,
        format!(
            "leasehold {}, API leasehold.v1\n",
            env!("CARGO_PKG_VERSION")
        )
    );
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = cli.run(&["completion", shell]).await;
        assert_eq!(
            (script.code, script.stderr.as_str()),
            (Some(0), ""),
            "{shell}"
        );
        assert!(script.stdout.contains("force-release"), "{shell}");
        assert!(
            !script.stdout.contains("exec-child,") || shell != "fish",
            "{shell}"
        );
    }
    let mut bash = tokio::process::Command::new("bash");
    let script = cli.write("completion", &cli.run(&["completion", "bash"]).await.stdout);
    let ask = "source $0; COMP_WORDS=(leasehold force); COMP_CWORD=1; \
               _leasehold leasehold force leasehold; echo ${COMPREPLY[@]}";
    bash.args(["-c", ask, &script]);
    let completed = leasehold_tests::cli::ran(bash).await;
    assert_eq!(completed.stdout, "force-release\n", "{}", completed.stderr);
}

#[tokio::test]
async fn every_help_names_the_exit_codes_that_matter() {
    let cli = Cli::at("127.0.0.1:1");
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["acquire", "--help"],
        &["renew", "--help"],
    ] {
        let help = cli.run(args).await;
        assert_eq!(help.code, Some(0));
        for code in ["123", "124", "125", "126", "127", "128+N"] {
            let is_told = |line: &str| line.trim_start().starts_with(&format!("{code} "));
            assert!(
                help.stdout.lines().any(is_told),
                "{args:?}: {code}: {}",
                help.stdout
            );
        }
    }
}
