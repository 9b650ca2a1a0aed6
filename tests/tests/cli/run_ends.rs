//! The end of a command under `leasehold run` and of all its descendants: with the loss of its
//! lock, with `leasehold`, and with its guard process.

use std::time::Duration;

use leasehold::Client as Sdk;
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    client::{
        operator::{force_release, force_release_request},
        unary::Client,
    },
    net::http2_proxy::{Direction, Http2Proxy, ProxyMode},
    process::{
        boottime_shim::BoottimeShim,
        leasehold_command::{Cli, RunningCommand, is_alive, supervisor_of},
    },
    scale::print_figures,
    until::until,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

/// Duration of the simulated sleep of the machine.
const SUSPENDED_FOR: Duration = Duration::from_secs(300);
/// Upper bound of the time until a command ends, well before it would be killed.
const AT_ONCE: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(30);
/// Upper bound of the time from the end of a command until its revoked lock is free.
const FREED_WITHIN: Duration = Duration::from_millis(500);

async fn start_broker() -> (InProcessBroker, Cli) {
    let broker = InProcessBroker::start().await;
    let cli = Cli::for_broker(broker.api);
    (broker, cli)
}

async fn sdk(broker: &InProcessBroker) -> Sdk {
    let client = Sdk::connect(&format!("http://{}", broker.api)).await;
    client.expect("a broker that runs")
}

/// Starts a shell script under the lock `a`.
fn shell(cli: &Cli, script: &str) -> RunningCommand {
    cli.start(&["run", "-q", "a", "--", "sh", "-c", script])
}

fn pid(text: &str) -> i32 {
    text.trim().parse().expect("a process id")
}

/// Script of a shell with a child in its process group, a child in another group, and two
/// descendants whose parent has ended.
const FAMILY: &str = "sleep 1000 & a=$!; setsid sleep 1001 & b=$!; \
    c=$(sleep 1002 >/dev/null & echo $!); d=$(setsid sleep 1003 >/dev/null & echo $!); \
    trap '' TERM; echo $$ $a $b $c $d; while :; do sleep 0.01; done";

#[tokio::test]
async fn a_killed_leasehold_leaves_no_process_behind() {
    let (broker, cli) = start_broker().await;
    let mut running = cli.start(&[
        "run",
        "-q",
        "--kill-after=500ms",
        "a",
        "--",
        "sh",
        "-c",
        FAMILY,
    ]);
    let pids: Vec<i32> = running
        .next_stdout_line()
        .await
        .split(' ')
        .map(pid)
        .collect();
    assert!(
        pids.len() == 5 && pids.iter().all(|pid| is_alive(*pid)),
        "{pids:?}"
    );
    let killed = Instant::now();
    running.signal(Signal::KILL);
    until("all are gone", async || {
        (!pids.iter().any(|pid| is_alive(*pid))).then_some(())
    })
    .await;
    let gone = killed.elapsed();
    print_figures(&format!(
        "cli_run: kill -9 of leasehold with a stubborn family of {}: all gone after {}ms",
        pids.len(),
        gone.as_millis()
    ));
    assert!(
        gone >= Duration::from_millis(450),
        "they had time to end: {gone:?}"
    );
    drop(running);
    broker.stop().await;
}

#[tokio::test]
async fn with_leasehold_stopped_and_its_guard_killed_the_command_is_killed() {
    let (broker, cli) = start_broker().await;
    let mut running = shell(&cli, FAMILY);
    let pids: Vec<i32> = running
        .next_stdout_line()
        .await
        .split(' ')
        .map(pid)
        .collect();
    running.signal(Signal::STOP);
    kill_process(supervisor_of(pids[0]), Signal::KILL).expect("a process of this test");
    until("the command is gone", async || {
        (!is_alive(pids[0])).then_some(())
    })
    .await;
    running.signal(Signal::CONT);
    assert_eq!(running.wait_for_exit().await.code, Some(125));
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "left behind");
    broker.stop().await;
}

#[tokio::test]
async fn a_stopped_guard_process_has_no_effect() {
    let broker = InProcessBroker::start().await;
    let proxy = Http2Proxy::start(broker.api).await;
    let cli = Cli::for_broker(proxy.addr());
    let args = [
        "run",
        "-q",
        "--ttl=3s",
        "--kill-after=1s",
        "a",
        "--",
        "sh",
        "-c",
        FAMILY,
    ];
    let mut running = cli.start(&args);
    let pids: Vec<i32> = running
        .next_stdout_line()
        .await
        .split(' ')
        .map(pid)
        .collect();
    let next = sdk(&broker).await;
    kill_process(supervisor_of(pids[0]), Signal::STOP).expect("a process of this test");
    proxy.set_mode(ProxyMode::DropFrames(Direction::Both));
    let guard = next.lock("a").wait(Duration::from_secs(20)).acquire().await;
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "alive at the grant");
    assert_eq!(running.wait_for_exit().await.code, Some(123));
    guard.expect("its turn").release().await.expect("held");
    proxy.close_connections().await;
    next.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn after_a_suspend_the_command_has_been_ended() {
    let (broker, cli) = start_broker().await;
    let shim = BoottimeShim::build().await;
    let mut command = cli.command(&["run", "-q", "a", "--", "sh", "-c", FAMILY]);
    shim.apply(&mut command);
    let mut running = RunningCommand::start(command);
    let pids: Vec<i32> = running
        .next_stdout_line()
        .await
        .split(' ')
        .map(pid)
        .collect();
    let woken = Instant::now();
    shim.set_offset(SUSPENDED_FOR);
    until("all are gone", async || {
        (!pids.iter().any(|pid| is_alive(*pid))).then_some(())
    })
    .await;
    let gone = woken.elapsed();
    print_figures(&format!(
        "cli_run: CLOCK_BOOTTIME set {}s ahead: a stubborn family of {} gone after {}ms",
        SUSPENDED_FOR.as_secs(),
        pids.len(),
        gone.as_millis()
    ));
    // The command must end before `--kill-after`, because another caller may have the lock by then.
    assert!(gone < AT_ONCE, "{gone:?}");
    assert_eq!(running.wait_for_exit().await.code, Some(123));
    broker.stop().await;
}

#[tokio::test]
async fn without_its_guard_process_the_command_ends() {
    let (broker, cli) = start_broker().await;
    let mut running = shell(&cli, FAMILY);
    let pids: Vec<i32> = running
        .next_stdout_line()
        .await
        .split(' ')
        .map(pid)
        .collect();
    kill_process(supervisor_of(pids[0]), Signal::KILL).expect("a process of this test");
    let ran = running.wait_for_exit().await;
    let reason = "leasehold: the guard of the command was killed, and the command with it\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(125), reason));
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "left behind");
    let free = sdk(&broker)
        .await
        .lock("a")
        .try_acquire()
        .await
        .expect("an answer");
    free.expect("released").release().await.expect("held");
    broker.stop().await;
}

#[tokio::test]
async fn processes_that_the_command_detached_survive() {
    let (broker, cli) = start_broker().await;
    let script = "setsid sleep 30 >/dev/null 2>&1 & echo $!";
    let ran = cli.run(&["run", "-q", "a", "--", "sh", "-c", script]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let left = pid(&ran.stdout);
    assert!(is_alive(left));
    let left = Pid::from_raw(left).expect("a process id");
    kill_process(left, Signal::KILL).expect("a process of this test");
    broker.stop().await;
}

#[tokio::test]
async fn a_lease_that_ends_by_its_own_terms_ends_the_command() {
    let (broker, cli) = start_broker().await;
    let args = [
        "run",
        "-q",
        "a",
        "--ttl=3s",
        "--kill-after=500ms",
        "--max-hold=4s",
        "--",
    ];
    let started_at = Instant::now();
    let polite = cli.run(&[&args[..], &["sleep", "100"]].concat()).await;
    assert_eq!(polite.code, Some(123), "{}", polite.stderr);
    let reason = "leasehold: the lock \"a\" is lost: no renewal was confirmed in time. \
               The command gets SIGTERM, and SIGKILL 500ms later\n"
        .replace("500ms", "0.5s");
    assert_eq!(polite.stderr, reason);
    let lived = started_at.elapsed();
    assert!(
        lived > Duration::from_millis(2_500) && lived < Duration::from_secs(4),
        "{lived:?}"
    );
    broker.stop().await;
}

/// The command ends after half a second. No other caller gets the lock earlier, and the next waiter
/// gets it immediately afterwards.
#[tokio::test]
async fn a_revoked_lock_is_released_when_the_command_has_ended() {
    let (broker, cli) = start_broker().await;
    let script = "trap 'sleep 0.5; exit 0' TERM; echo $$; while :; do sleep 0.01; done";
    let mut running = shell(&cli, script);
    let command = pid(&running.next_stdout_line().await);
    let other = sdk(&broker).await;
    let next = other.lock("a").wait(WAIT);
    let next = async {
        let guard = next.acquire().await.expect("the next waiter");
        (guard, Instant::now(), is_alive(command))
    };
    let taken = async {
        let client = Client::new("operator", &[broker.api], 0);
        client.wait_for_queue_length_at(0, "a", 1).await;
        let lock = client.get_lock_at(0, "a").await.expect("it is held");
        let taken = force_release(
            broker.admin,
            force_release_request("a", &lock.holders[0].lease_id),
        )
        .await;
        taken.expect("an operator may");
        until("the end of the command", async || {
            (!is_alive(command)).then_some(())
        })
        .await;
        Instant::now()
    };
    let ((guard, granted, is_there), over) = tokio::join!(next, taken);
    let took = granted.saturating_duration_since(over);
    print_figures(&format!(
        "cli_run: taken away, free {}ms after the end of the command",
        took.as_millis()
    ));
    assert!(!is_there, "the command relied on the lock");
    assert!(took < FREED_WITHIN, "{took:?}");
    assert_eq!(running.wait_for_exit().await.code, Some(123));
    guard.release().await.expect("held");
    other.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_ttl_too_short_to_end_in_time_is_refused() {
    let (broker, cli) = start_broker().await;
    let ran = cli
        .run(&["run", "-q", "a", "--ttl=4s", "--", "echo", "no"])
        .await;
    let reason = "leasehold: --ttl 4s is too short for --kill-after 2s: the command could not be ended \
               before another caller gets the lock. Use --ttl 6s or more, or --kill-after 1.333s \
               or less\n";
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (Some(125), "", reason)
    );
    let ran = cli
        .run(&[
            "run",
            "-q",
            "a",
            "--ttl=100s",
            "--kill-after=30s",
            "--",
            "echo",
            "no",
        ])
        .await;
    let reason = "leasehold: the broker granted a shorter ttl: 60s is too short for --kill-after 30s: \
               the command could not be ended before another caller gets the lock. \
               Use --ttl 90s or more, or --kill-after 20s or less\n";
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (Some(125), "", reason)
    );
    let free = sdk(&broker)
        .await
        .lock("a")
        .try_acquire()
        .await
        .expect("an answer");
    free.expect("released").release().await.expect("held");
    broker.stop().await;
}
