//! Commands of `leasehold` that read locks or show information about brokers and the program:
//! output and exit codes. JSON output is compared with golden files.

use std::{collections::BTreeSet, time::Duration};

use leasehold::Client as Sdk;
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    client::unary::{AcquireCall, Client},
    process::leasehold_command::{Cli, run_command},
    repository::golden::{assert_golden, parse_output},
};
use serde_json::{Value, json};

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
async fn one_lock_is_shown_with_holders_and_queue() {
    let (broker, cli) = start_broker().await;
    let free = cli.run(&["get", "a"]).await;
    assert_eq!(
        (free.code, free.stdout.as_str()),
        (Some(0), "a is free: no holders and no waiters\n")
    );
    assert_golden(
        "get_free",
        &parse_output(&cli.run(&["get", "a", "-o=json"]).await),
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
    observer.wait_for_queue_length_at(0, "a", 1).await;
    assert_golden(
        "get",
        &parse_output(&cli.run(&["get", "a", "-o=json"]).await),
    );
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
        held.starts_with("  held by worker-9 (\"nightly ‹U+0007›\") since "),
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
    assert_eq!(waiting.wait_for_exit().await.code, Some(0));
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn locks_are_listed_in_the_order_of_their_names() {
    let (broker, cli) = start_broker().await;
    assert_eq!(parse_output(&cli.run(&["ls", "-o=json"]).await), json!([]));
    let one = sdk(&broker, "one").await;
    let other = sdk(&broker, "other").await;
    let mut guards = Vec::new();
    for name in ["b", "a", "z"] {
        guards.push(one.lock(name).reason("nightly").acquire().await);
    }
    let args = [
        "acquire",
        "c",
        "--namespace=shop",
        "--owner=other",
        "--ttl=60s",
    ];
    assert_eq!(cli.run(&args).await.code, Some(0));
    guards.push(other.lock("a2").acquire().await);
    let guards: Vec<_> = guards.into_iter().map(|held| held.expect("free")).collect();
    let waiting = cli.start(&["run", "a2", "--owner=one", "--", "true"]);
    let observer = Client::new("observer", &[broker.api], 0);
    observer.wait_for_queue_length_at(0, "a2", 1).await;
    let names = async |args: &[&str]| {
        let listed = cli.run(&[&["ls", "-o=name"], args].concat()).await;
        assert_eq!((listed.code, listed.stderr.as_str()), (Some(0), ""));
        listed.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]).await, ["a", "a2", "b", "z"]);
    assert_eq!(names(&["a"]).await, ["a", "a2"]);
    assert_eq!(
        names(&["-A", "--owner=other"]).await,
        ["default/a2", "shop/c"]
    );
    assert_eq!(names(&["--owner=one"]).await, ["a", "a2", "b", "z"]);
    let shown = cli.run(&["ls", "a"]).await.stdout;
    let rows: Vec<_> = shown.lines().collect();
    let [a, a2] = rows.as_slice() else {
        panic!("two rows: {shown}")
    };
    let start = "a\theld\t0\tone (\"nightly\") since ";
    assert!(a.starts_with(start), "{a}");
    assert!(a2.starts_with("a2\theld\t1\tother since "), "{a2}");
    let wide = cli.run(&["ls", "-o=wide", "z"]).await.stdout;
    let guard = &guards[2];
    let end = format!("\t{}\t{}\n", guard.fencing_token(), guard.lease_id());
    assert!(wide.ends_with(&end), "{wide}");
    assert_golden(
        "ls_held",
        &parse_output(&cli.run(&["ls", "a", "-o=json"]).await),
    );
    for guard in guards {
        guard.release().await.expect("held");
    }
    assert_eq!(waiting.wait_for_exit().await.code, Some(0));
    one.shutdown().await;
    other.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_list_of_many_pages_is_printed_whole() {
    let (broker, cli) = start_broker().await;
    let names: BTreeSet<_> = (0..1_050).map(|n| format!("n-{n}")).collect();
    let holder = Client::new("holder", &[broker.api], 0);
    for name in &names {
        let call = AcquireCall::new(name, Duration::from_secs(60), Duration::ZERO);
        holder.acquire_at(0, &call).await.expect("free");
    }
    let listed = cli.run(&["ls", "-o=name"]).await;
    assert!(listed.stdout.lines().eq(&names), "{listed:?}");
    broker.stop().await;
}

#[tokio::test]
async fn a_fencing_token_is_checked() {
    let (broker, cli) = start_broker().await;
    let lease = parse_output(&cli.run(&["acquire", "a"]).await);
    let token = lease["locks"][0]["fencing_token"].to_string();
    let live = cli.run(&["check-token", "a", &token, "-o=json"]).await;
    assert_golden("check_token", &parse_output(&live));
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
async fn the_health_of_every_broker_is_queried() {
    let (broker, mut cli) = start_broker().await;
    let ping = cli.run(&["ping"]).await;
    let start = format!("{}: serving, responded in ", cli.endpoint);
    assert!(ping.stdout.starts_with(&start), "{ping:?}");
    assert_golden("ping", &parse_output(&cli.run(&["ping", "-o=json"]).await));
    for service in ["liveness", "readiness"] {
        let ping = cli.run(&["ping", "--service", service]).await;
        assert!(ping.stdout.starts_with(&start), "{ping:?}");
    }
    let unknown = cli.run(&["ping", "--service=else"]).await;
    assert_eq!(unknown.code, Some(125), "{unknown:?}");
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
    let cli = Cli::for_broker("127.0.0.1:1");
    let version = cli.run(&["version", "-o=json"]).await;
    assert_golden("version", &parse_output(&version));
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
        assert!(!script.stdout.contains("exec-child"), "{shell}");
    }
    let mut bash = tokio::process::Command::new("bash");
    let script = cli.write("completion", &cli.run(&["completion", "bash"]).await.stdout);
    let ask = "source $0; COMP_WORDS=(leasehold force); COMP_CWORD=1; \
               _leasehold leasehold force leasehold; echo ${COMPREPLY[@]}";
    bash.args(["-c", ask, &script]);
    let completed = run_command(bash).await;
    assert_eq!(completed.stdout, "force-release\n", "{}", completed.stderr);
}

#[tokio::test]
async fn every_help_names_the_exit_codes_that_matter() {
    let cli = Cli::for_broker("127.0.0.1:1");
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
