//! The server binary as a process: output, exit codes and log.

use std::{path::PathBuf, process::Stdio, time::Duration};

use leasehold_proto::v1::{
    AcquireRequest, LockTarget, Owner, ReleaseRequest, lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    client::{reflection_stream::open_reflection_stream, unary::channel},
    process::{binaries::leasehold_server, temp_dir::TempDir},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdout, Command},
    time::{Instant, timeout},
};
use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const DRAIN_LIMIT: Duration = Duration::from_secs(10);
const ANY_PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];

struct Dev {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    _dir: TempDir,
}

impl Dev {
    fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    fn start_with(args: &[&str], env: &[(&str, &str)]) -> Self {
        let dir = TempDir::new("dev");
        let log = dir.path().join("stderr.log");
        let mut child = Command::new(leasehold_server())
            .arg("dev")
            .args(args)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).expect("a log file"))
            .kill_on_drop(true)
            .spawn()
            .expect("start the broker");
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        Self {
            child,
            lines,
            log,
            _dir: dir,
        }
    }

    async fn read_line(&mut self) -> String {
        self.lines
            .next_line()
            .await
            .expect("stdout")
            .expect("one more line")
    }

    async fn assert_exits_on(&mut self, signal: Signal) {
        self.signal(signal);
        assert_eq!(self.wait_for_exit().await, Some(0), "{}", self.log());
    }

    fn signal(&self, signal: Signal) {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        kill_process(pid.expect("it runs"), signal).expect("signal the broker");
    }

    async fn wait_for_exit(&mut self) -> Option<i32> {
        let ended = timeout(DRAIN_LIMIT, self.child.wait()).await;
        ended.expect("it ends in time").expect("its status").code()
    }

    /// Returns a channel to the API, whose address is in the first line of the output.
    async fn api(&mut self) -> Channel {
        let line = self.read_line().await;
        let api = line.strip_prefix("listening on ").expect("the first line");
        channel(api.parse().expect("an address"))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log")
    }
}

/// Runs the binary until it exits. Returns the exit code, stdout and stderr.
async fn run(args: &[&str]) -> (Option<i32>, String, String) {
    run_with(args, &[]).await
}

async fn run_with(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let command = Command::new(leasehold_server())
        .args(args)
        .envs(env.iter().copied())
        .kill_on_drop(true)
        .output();
    let output = timeout(DRAIN_LIMIT, command)
        .await
        .expect("it ends")
        .expect("its output");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test]
async fn it_prints_its_addresses_and_ends_by_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut dev = Dev::start(&ANY_PORTS);
        let line = dev.read_line().await;
        let api = line
            .strip_prefix("listening on 127.0.0.1:")
            .expect("the first line");
        assert_ne!(api, "0");
        assert!(
            dev.read_line()
                .await
                .starts_with("admin listening on 127.0.0.1:")
        );
        dev.assert_exits_on(signal).await;
    }
}

#[tokio::test]
async fn a_busy_port_is_named() {
    let busy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = busy.local_addr().expect("its address").to_string();
    let (code, _, stderr) = run(&["dev", "--listen", &address]).await;
    assert_eq!(code, Some(1));
    let named = format!("cannot listen on {address}: address already in use");
    assert!(stderr.contains(&named), "{stderr}");
}

#[tokio::test]
async fn dev_serves_others_no_shared_store() {
    let store = [("LEASEHOLD__STORE__URL", "redis://127.0.0.1:6379/0")];
    let dev = ["dev", "--listen", "0.0.0.0:0", "--insecure"];
    let (code, _, stderr) = run_with(&dev, &store).await;
    assert_eq!(code, Some(1));
    assert!(stderr.contains("run `serve` for this store"), "{stderr}");
}

#[tokio::test]
async fn check_config_names_every_problem_and_no_secret() {
    let dir = TempDir::new("config");
    let file = dir.path().join("leasehold.toml");
    let path = file.to_str().expect("UTF-8");
    let wrong = "[server]\nlisten = 'nowhere'\nlissten = 1\n[limits]\nttl_max = 'long'\n\
                 [store]\nurl = 'redis://:canary@h:x'\n";
    std::fs::write(&file, wrong).expect("write the file");
    let (code, stdout, stderr) = run(&["check-config", "--config", path, "--log", "a=b=c"]).await;
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    for key in [
        "server.listen ",
        "server.lissten ",
        "limits.ttl_max ",
        "store.url ",
        "log.filter ",
    ] {
        assert!(
            stderr.lines().any(|line| line.starts_with(key)),
            "{key}: {stderr}"
        );
    }
    assert!(!stderr.contains("canary"), "{stderr}");
    let of_a_cluster = "[store]\nurl = 'redis://h'\nsharded_pubsub = true\n";
    std::fs::write(&file, of_a_cluster).expect("write the file");
    let (code, _, stderr) = run(&["check-config", "--config", path]).await;
    assert_eq!(code, Some(1));
    let named = stderr.starts_with("store.sharded_pubsub ");
    assert!(
        named && stderr.contains("requires redis-cluster://"),
        "{stderr}"
    );
    std::fs::write(&file, "[store]\nurl = 'memory'\n").expect("write the file");
    let (code, stdout, stderr) = run(&["check-config", "--config", path]).await;
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
}

#[tokio::test]
async fn flags_win_over_the_environment_and_that_over_the_file() {
    const ENV: &str = "LEASEHOLD__SERVER__LISTEN";
    let dir = TempDir::new("config");
    let file = dir.path().join("leasehold.toml");
    let path = file.to_str().expect("UTF-8");
    std::fs::write(&file, "[server]\nlisten = 'of the file'\n").expect("write the file");
    let check = ["check-config", "--store", "memory", "--config", path];
    let flagged = |listen| [&check[..], &["--listen", listen]].concat();
    let (env, legal) = ([(ENV, "of the environment")], "127.0.0.1:7070");
    for (args, env, named) in [
        (check.to_vec(), &[][..], Some(path)),
        (check.to_vec(), &env, Some(ENV)),
        (check.to_vec(), &[(ENV, legal)], None),
        (flagged("of the flag"), &[(ENV, legal)], Some("--listen")),
        (flagged(legal), &env, None),
    ] {
        let (code, _, stderr) = run_with(&args, env).await;
        let problems: Vec<_> = stderr.lines().collect();
        match named {
            Some(origin) => {
                let begin = format!("server.listen (from {origin}): ");
                assert!(problems[0].starts_with(&begin), "{origin}: {stderr}");
                assert_eq!((code, problems.len()), (Some(1), 1), "{stderr}");
            }
            None => assert_eq!((code, stderr.as_str()), (Some(0), "")),
        }
    }
}

#[tokio::test]
async fn a_store_out_of_reach_ends_the_start_with_a_sentence() {
    let port = leasehold_tests::process::ports::free_port();
    let url = format!("redis://:canary@127.0.0.1:{port}/0");
    let args = [&["serve", "--store", &url][..], &ANY_PORTS].concat();
    let (code, _, stderr) = run(&args).await;
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains(&format!(
            "Redis at 127.0.0.1:{port} cannot be reached: Connection refused. Start it"
        )),
        "{stderr}"
    );
    assert!(!stderr.contains("canary"), "{stderr}");
}

#[tokio::test]
async fn a_drain_ends_with_drain_timeout() {
    let env = [("LEASEHOLD__SERVER__DRAIN_TIMEOUT", "500ms")];
    let mut dev = Dev::start_with(&ANY_PORTS, &env);
    let mut open = open_reflection_stream(dev.api().await).await;
    let started = Instant::now();
    dev.assert_exits_on(Signal::TERM).await;
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(500), "{took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(dev.log().contains("drain_timeout has passed"));
    open.message().await.expect_err("it was cut");
}

#[tokio::test]
async fn a_second_signal_ends_a_drain() {
    for second in [Signal::TERM, Signal::INT] {
        let mut dev = Dev::start(&ANY_PORTS);
        let api = dev.api().await;
        let _open = open_reflection_stream(api.clone()).await;
        let mut health = HealthClient::new(api);
        let watch = health.watch(HealthCheckRequest::default()).await;
        let mut watch = watch.expect("health answers").into_inner();
        let started = Instant::now();
        dev.signal(Signal::TERM);
        // The drain ends the watch.
        while watch.message().await.expect("an orderly end").is_some() {}
        dev.signal(second);
        assert_eq!(dev.wait_for_exit().await, Some(1));
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "before the drain_timeout"
        );
        let log = dev.log();
        assert!(
            log.ends_with("terminated before the drain was complete\n"),
            "{log}"
        );
    }
}

#[tokio::test]
async fn the_log_is_json_in_a_file() {
    let mut dev = Dev::start(&ANY_PORTS);
    dev.read_line().await;
    dev.assert_exits_on(Signal::TERM).await;
    let log = dev.log();
    assert!(log.lines().count() > 0);
    for line in log.lines() {
        let is_object = line.starts_with('{') && line.ends_with('}');
        assert!(is_object && line.contains(r#""level":"INFO""#), "{line}");
    }
}

#[tokio::test]
async fn the_log_holds_no_secret() {
    let mut dev = Dev::start(&[&ANY_PORTS[..], &["--log", "debug"]].concat());
    let mut locks = LockServiceClient::new(dev.api().await);
    let request_id = "cafe0000-dead-4bee-8000-c0ffeec0ffee";
    let request = AcquireRequest {
        target: Some(LockTarget {
            name: "a-lock".to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "worker-1".to_owned(),
            ..Owner::default()
        }),
        request_id: request_id.to_owned(),
        ..AcquireRequest::default()
    };
    let lease = locks
        .acquire(request)
        .await
        .expect("a free lock")
        .into_inner()
        .lease;
    let lease_token = lease.clone().expect("a lease").lease_token;
    let release = ReleaseRequest {
        lease: lease.clone(),
        ..ReleaseRequest::default()
    };
    locks.release(release).await.expect("the holder");
    let mut forged = lease.expect("a lease");
    forged.lease_token = "canary-of-a-token".to_owned();
    let release = ReleaseRequest {
        lease: Some(forged),
        ..ReleaseRequest::default()
    };
    let status = locks.release(release).await.expect_err("a forged token");
    assert!(!format!("{status:?}").contains("canary-of-a-token"));
    dev.assert_exits_on(Signal::TERM).await;
    let log = dev.log();
    assert!(log.contains("draining"), "{log}");
    for secret in [
        request_id,
        "c0ffeec0ffee",
        &lease_token,
        "canary-of-a-token",
    ] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}
