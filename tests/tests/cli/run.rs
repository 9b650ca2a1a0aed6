//! `leasehold run`: environment, signals and exit code of the command.

use std::process::Stdio;

use leasehold::Client as Sdk;
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    process::leasehold_command::{
        Cli, RunningCommand, is_alive, run_command as ran_plainly, supervisor_of,
        wait_until_signals_handled,
    },
    repository::golden::parse_output,
    until::until,
};
use rustix::process::{Pid, Signal};

/// Starts a broker, and prepares to call it from a temporary home directory.
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

#[tokio::test]
async fn others_see_the_name_of_the_program_and_no_arguments() {
    let (broker, cli) = start_broker().await;
    let script = "sleep 60 # --password=s3cret";
    let command = ["--", "/bin/sh", "-c", script];
    for (flags, reason) in [(&[][..], "sh"), (&["--reason=backup"], "backup")] {
        let running = cli.start(&[&["run", "-q", "a"], flags, &command].concat());
        let lock = until("the lock is held", async || {
            let lock = parse_output(&cli.run(&["get", "a", "-o=json"]).await);
            (lock["state"] == "held").then_some(lock)
        })
        .await;
        assert_eq!(lock["holders"][0]["reason"], reason);
        running.signal(Signal::TERM);
        assert_eq!(running.wait_for_exit().await.code, Some(128 + 15));
    }
    broker.stop().await;
}

#[tokio::test]
async fn the_command_knows_its_lock_but_not_the_secret() {
    let (broker, cli) = start_broker().await;
    let ran = cli
        .run(&[
            "run",
            "-q",
            "orders/42",
            "--namespace=shop",
            "--ttl=8s",
            "--",
            "env",
        ])
        .await;
    let value = |name: &str| {
        let start = format!("{name}=");
        let mut lines = ran.stdout.lines();
        lines
            .find_map(|line| line.strip_prefix(&start))
            .unwrap_or_default()
    };
    assert_eq!(value("LEASEHOLD_NAME"), "orders/42");
    assert_eq!(value("LEASEHOLD_NAMESPACE"), "shop");
    assert_eq!(value("LEASEHOLD_TTL_MS"), "8000");
    assert!(
        value("LEASEHOLD_FENCING_TOKEN")
            .parse::<i64>()
            .is_ok_and(|token| token > 0)
    );
    assert!(!value("LEASEHOLD_LEASE_ID").is_empty());
    let names = ran
        .stdout
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name);
    let mut ours: Vec<_> = names.filter(|name| name.starts_with("LEASEHOLD")).collect();
    ours.sort_unstable();
    let expected = [
        "LEASEHOLD_ENDPOINT",
        "LEASEHOLD_FENCING_TOKEN",
        "LEASEHOLD_LEASE_ID",
        "LEASEHOLD_NAME",
        "LEASEHOLD_NAMESPACE",
        "LEASEHOLD_TTL_MS",
    ];
    assert_eq!(ours, expected);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    broker.stop().await;
}

#[tokio::test]
async fn its_streams_are_the_commands_and_only_they() {
    let (broker, cli) = start_broker().await;
    let script = "cat; echo beside >&2; ls /proc/self/fd | wc -l";
    let ran = cli
        .run_with(&["run", "-q", "a", "--", "sh", "-c", script], "one\ntwo\n")
        .await;
    // The command inherits exactly the file descriptors that are open here.
    let mut plain = tokio::process::Command::new("sh");
    plain.args(["-c", script]).stdin(Stdio::null());
    let open = ran_plainly(plain).await.stdout;
    assert_eq!(ran.stdout, format!("one\ntwo\n{open}"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), "beside\n"));
    broker.stop().await;
}

#[tokio::test]
async fn the_code_is_that_of_the_command() {
    let (broker, cli) = start_broker().await;
    for code in [0, 1, 2, 64, 123, 124, 255] {
        let ran = cli
            .run(&["run", "-q", "a", "--", "sh", "-c", &format!("exit {code}")])
            .await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(code), ""));
    }
    for signal in [Signal::TERM, Signal::KILL, Signal::INT, Signal::PIPE] {
        let script = format!("kill -{} $$", signal.as_raw());
        let ran = cli
            .run(&["run", "-q", "a", "--", "sh", "-c", &script])
            .await;
        assert_eq!(ran.code, Some(128 + signal.as_raw()), "{}", ran.stderr);
    }
    let ran = cli.run(&["run", "-q", "a", "--", "/no/such/command"]).await;
    let reason = "leasehold: cannot run /no/such/command: No such file or directory (os error 2)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(127), reason));
    let ran = cli.run(&["run", "-q", "a", "--", "/etc/passwd"]).await;
    let reason = "leasehold: cannot run /etc/passwd: Permission denied (os error 13)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(126), reason));
    broker.stop().await;
}

#[tokio::test]
async fn no_shell_reads_the_arguments() {
    let (broker, cli) = start_broker().await;
    let ran = cli
        .run(&[
            "run",
            "-q",
            "a",
            "--",
            "echo",
            "$HOME; exit 3",
            "-n",
            "--",
            "*",
        ])
        .await;
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "$HOME; exit 3 -n -- *\n")
    );
    broker.stop().await;
}

#[tokio::test]
async fn the_lock_is_held_as_long_as_the_command_runs() {
    let (broker, cli) = start_broker().await;
    let other = sdk(&broker).await;
    let mut first = shell(&cli, "echo runs; read end");
    first.next_stdout_line().await;
    assert!(
        other
            .lock("a")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    let busy = cli.run(&["run", "-q", "-n", "a", "--", "echo", "no"]).await;
    assert_eq!((busy.code, busy.stdout.as_str()), (Some(124), ""));
    let other_code = cli
        .run(&["run", "-q", "-n", "-E", "75", "a", "--", "echo", "no"])
        .await;
    assert_eq!(
        (other_code.code, other_code.stdout.as_str()),
        (Some(75), "")
    );
    let skipped = cli
        .run(&["run", "-q", "-n", "--skip", "a", "--", "echo", "no"])
        .await;
    assert_eq!((skipped.code, skipped.stdout.as_str()), (Some(0), ""));
    let waited = cli
        .run(&["run", "-q", "--wait=300ms", "a", "--", "echo", "no"])
        .await;
    assert_eq!((waited.code, waited.stdout.as_str()), (Some(124), ""));
    first.stdin.take();
    assert_eq!(first.wait_for_exit().await.code, Some(1));
    let guard = other.lock("a").try_acquire().await.expect("an answer");
    guard
        .expect("released with the end of the command")
        .release()
        .await
        .expect("held");
    other.shutdown().await;
    broker.stop().await;
}

#[tokio::test]
async fn shared_locks_permits_and_several_locks() {
    let (broker, cli) = start_broker().await;
    let nested = |first: &[&str], second: &[&str]| {
        let program = leasehold_tests::process::binaries::leasehold();
        let program = program.to_str().expect("plain text").to_owned();
        let inner = ["-n", "--", "true"].map(str::to_owned);
        let mut args = vec!["run".to_owned(), "-q".to_owned()];
        args.extend(first.iter().map(|&arg| arg.to_owned()));
        args.extend(["--".to_owned(), program, "run".to_owned(), "-q".to_owned()]);
        args.extend(second.iter().map(|&arg| arg.to_owned()));
        args.extend(inner);
        args
    };
    let scenes = [
        (nested(&["s", "--shared"], &["s", "--shared"]), 0),
        (nested(&["s", "--shared"], &["s"]), 124),
        (nested(&["p", "--permits=2/3"], &["p", "--permits=1/3"]), 0),
        (
            nested(&["p", "--permits=2/3"], &["p", "--permits=2/3"]),
            124,
        ),
        (nested(&["x", "--lock=y"], &["y"]), 124),
        (nested(&["x", "--lock=y"], &["z", "--lock=w"]), 0),
    ];
    for (args, code) in scenes {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let ran = cli.run(&args).await;
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
    }
    broker.stop().await;
}

#[tokio::test]
async fn signals_reach_the_group_of_the_command() {
    let (broker, cli) = start_broker().await;
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        // The script starts an inner shell and waits for it.
        let inner =
            format!("trap \"echo inner; exit 0\" {name}; echo ready; while :; do sleep 0.01; done");
        let script = format!("trap 'echo outer' {name}; sh -c '{inner}'; exit 40");
        let mut running = shell(&cli, &script);
        assert_eq!(running.next_stdout_line().await, "ready");
        running.signal(signal);
        let output_lines = [
            running.next_stdout_line().await,
            running.next_stdout_line().await,
        ];
        assert_eq!(output_lines, ["inner", "outer"], "{name}");
        assert_eq!(running.wait_for_exit().await.code, Some(40), "{name}");
    }
    broker.stop().await;
}

#[tokio::test]
async fn the_group_is_the_commands_own() {
    let (broker, cli) = start_broker().await;
    let mut running = shell(&cli, "cut -d' ' -f5 /proc/$$/stat; read end");
    let group = pid(&running.next_stdout_line().await);
    let own = rustix::process::getpgid(Some(running.pid())).expect("it runs");
    assert_ne!(Pid::from_raw(group), Some(own));
    drop(running.stdin.take());
    assert_eq!(running.wait_for_exit().await.code, Some(1));
    broker.stop().await;
}

#[tokio::test]
async fn a_second_interrupt_kills() {
    let (broker, cli) = start_broker().await;
    let mut running = shell(
        &cli,
        "trap 'echo first' INT; echo $$; while :; do sleep 0.01; done",
    );
    let command = pid(&running.next_stdout_line().await);
    running.signal(Signal::INT);
    assert_eq!(running.next_stdout_line().await, "first");
    // A second signal is lost if it is sent before the first one is handled.
    wait_until_signals_handled(supervisor_of(command)).await;
    assert!(is_alive(command));
    running.signal(Signal::INT);
    assert_eq!(running.wait_for_exit().await.code, Some(137));
    assert!(!is_alive(command));
    broker.stop().await;
}

#[tokio::test]
async fn what_is_ignored_at_first_stays_ignored() {
    let (broker, cli) = start_broker().await;
    let mut nohup = tokio::process::Command::new("nohup");
    nohup.arg(leasehold_tests::process::binaries::leasehold());
    let script = "echo ready; read end; exit 7";
    let nohup = cli.in_environment(nohup, &["run", "-q", "a", "--", "sh", "-c", script]);
    let mut running = RunningCommand::start(nohup);
    assert_eq!(running.next_stdout_line().await, "ready");
    running.signal(Signal::HUP);
    running.signal(Signal::WINCH);
    drop(running.stdin.take());
    assert_eq!(running.wait_for_exit().await.code, Some(7));
    broker.stop().await;
}
