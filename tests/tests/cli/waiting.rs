//! What `leasehold` says while it waits for a lock, away from a terminal: one line for each change.

use std::time::Duration;

use leasehold::Client as Sdk;
use leasehold_tests::{
    cli::Cli,
    client::Client,
    in_process::InProcess,
    proxy::{Mode, Proxy, Way},
};
use rustix::process::Signal;

async fn sdk(broker: &InProcess, owner: &str) -> Sdk {
    let client = Sdk::builder(&format!("http://{}", broker.api)).owner(owner);
    client.connect().await.expect("a broker that runs")
}

#[tokio::test]
async fn each_change_is_one_line_and_free_locks_need_none() {
    let broker = InProcess::start().await;
    let cli = Cli::at(broker.api);
    let observer = Client::new("observer", &[broker.api], 0);
    let owner = sdk(&broker, "first").await;
    let first = owner.lock("a").reason("backup").acquire().await;
    let first = first.expect("free");
    let second = sdk(&broker, "second").await;
    let ahead = tokio::join!(second.lock("a").acquire(), async {
        observer.queued_at(0, "a", 1).await;
        let mut waiting = cli.start(&["run", "a", "--", "echo", "done"]);
        let mut line = waiting.said().await;
        // It may be asked for before it is in line.
        if line.contains("asking") {
            line = waiting.said().await;
        }
        let start = "leasehold: waiting for a: position 2 of 2, held by first \"backup\" for ";
        assert!(line.starts_with(start), "{line}");
        assert!(line.ends_with(" (Ctrl-C to give up)"), "{line}");
        first.release().await.expect("held");
        let line = waiting.said().await;
        let start = "leasehold: waiting for a: position 1 of 1, held by second for ";
        assert!(line.starts_with(start), "{line}");
        waiting
    });
    let (guard, waiting) = ahead;
    guard.expect("its turn").release().await.expect("held");
    let ran = waiting.ended().await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "done\n"));
    assert!(!ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
    let free = cli.run(&["run", "b", "--", "true"]).await;
    assert_eq!((free.code, free.stderr.as_str()), (Some(0), ""));
    owner.shutdown().await;
    second.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_does_not_answer_is_named_while_it_is_asked() {
    let broker = InProcess::start().await;
    let proxy = Proxy::start(broker.api).await;
    proxy.set_mode(Mode::Swallow(Way::Both));
    let cli = Cli::at(proxy.addr());
    let mut asking = cli.start(&["run", "a", "--", "true"]);
    let line = asking.said().await;
    let start = format!("leasehold: waiting for a: asking {} for ", cli.endpoint);
    assert!(line.starts_with(&start), "{line}");
    let ran = asking.ended().await;
    assert_eq!(ran.code, Some(125));
    let said = format!(
        "leasehold: no broker answers: {}: no answer within 2s. ",
        cli.endpoint
    );
    assert!(ran.stderr.starts_with(&said), "{}", ran.stderr);
    proxy.cut().await;
    broker.stop().await;
}

#[tokio::test]
async fn quiet_says_nothing_and_a_signal_gives_up() {
    let broker = InProcess::start().await;
    let cli = Cli::at(broker.api);
    let holder = sdk(&broker, "holder").await;
    let guard = holder.lock("a").acquire().await.expect("free");
    let observer = Client::new("observer", &[broker.api], 0);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let waiting = cli.start(&["run", "-q", "a", "--", "true"]);
        observer.queued_at(0, "a", 1).await;
        // Longer than it takes until something would be said.
        tokio::time::sleep(Duration::from_millis(300)).await;
        waiting.signal(signal);
        let ran = waiting.ended().await;
        assert_eq!(
            (ran.code, ran.stderr.as_str()),
            (Some(code), "leasehold: gave up waiting\n")
        );
        let lock = observer
            .get_lock("a")
            .await
            .expect("an answer")
            .expect("held");
        assert_eq!(lock.queue_length, 0, "the place in line is given up");
    }
    guard.release().await.expect("held");
    holder.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn who_is_in_the_way_is_told_with_what_to_try() {
    let broker = InProcess::start().await;
    let cli = Cli::at(broker.api);
    let holder = sdk(&broker, "worker-9").await;
    let guard = holder
        .lock("a")
        .reason("nightly")
        .acquire()
        .await
        .expect("free");
    for (args, start, next) in [
        (
            &["run", "-q", "-n", "a", "--", "true"][..],
            "",
            "leasehold run --wait 5m a -- …",
        ),
        (
            &["run", "-q", "--wait=200ms", "a", "--", "true"],
            "the wait is over: ",
            "leasehold run --wait 0.4s a -- …",
        ),
        (&["hold", "-q", "-n", "a"], "", "leasehold hold --wait 5m a"),
        (&["acquire", "-n", "a"], "", "leasehold acquire --wait 5m a"),
        (
            &["acquire", "--wait=200ms", "a"],
            "the wait is over: ",
            "leasehold acquire --wait 0.4s a",
        ),
    ] {
        let ran = cli.run(args).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(124), ""), "{args:?}");
        let said = ran.stderr;
        let start =
            format!("leasehold: {start}lock \"a\" is held by worker-9 (\"nightly\") since ");
        assert!(said.starts_with(&start), "{said}");
        assert!(said.ends_with(&format!("). Try: {next}\n")), "{said}");
    }
    guard.release().await.expect("held");
    holder.shutdown().await;
    broker.stop().await;
}
