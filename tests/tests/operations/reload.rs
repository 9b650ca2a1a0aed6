//! Reload of the configuration of a running broker: settings that take effect, settings that need a
//! restart, and log messages.

use std::{fs, os::unix::fs::symlink, time::Duration};

use leasehold_proto::v1::{
    AcquireRequest, Lease, LockTarget, Owner, lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::configuration::Configuration,
    client::{
        reflection_stream::open_reflection_stream,
        stream::StreamClient,
        unary::{AcquireCall, Client, channel},
    },
    process::{binaries::leasehold_server, child::TestProcess},
    until::until,
};
use tokio::{process::Command, time::sleep};
use tonic::{Code, transport::Channel};
use uuid::Uuid;

const API: &str = "listening on ";
const ADMIN: &str = "admin listening on ";
const LOG: &str = "stderr.log";
/// Five times the quiet period that a directory must have before a reload.
const IDLE: Duration = Duration::from_secs(1);
const KEPT_MESSAGE: &str = "keeping the current configuration";

/// A `leasehold-server dev` process that logs to the directory of its configuration.
struct Broker {
    configuration: Configuration,
    process: TestProcess,
    api: Channel,
    client: Client,
}

impl Broker {
    /// Starts a broker with this configuration.
    async fn start_with(text: &str) -> Self {
        let configuration = Configuration::new(text);
        let file = configuration.file().display().to_string();
        Self::start(configuration, &["--config", &file], &[]).await
    }

    async fn start(configuration: Configuration, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(leasehold_server());
        command.args([
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
        ]);
        command.args(args).env("LEASEHOLD__LOG__FORMAT", "text");
        command.envs(env.iter().copied());
        let log = configuration.dir().join(LOG);
        let (process, lines) = TestProcess::start(command, &log, &[ADMIN, API]).await;
        let api = lines[1].strip_prefix(API).and_then(|api| api.parse().ok());
        let api = api.expect("an address after the mark");
        Self {
            configuration,
            process,
            api: channel(api),
            client: Client::new("worker", &[api], 0),
        }
    }

    fn rewrite(&self, text: &str) {
        fs::write(self.configuration.file(), text).expect("write the configuration");
    }

    /// Returns the TTL in milliseconds that is granted to a call with this TTL, or without one.
    async fn granted_ms(&self, ttl_ms: Option<u64>) -> u128 {
        let ttl = self.granted(request(ttl_ms)).await.ttl;
        let ttl = Duration::try_from(ttl.expect("a lease has a ttl"));
        ttl.expect("it is positive").as_millis()
    }

    async fn granted(&self, request: AcquireRequest) -> Lease {
        let mut locks = LockServiceClient::new(self.api.clone());
        let response = locks.acquire(request).await.expect("it is free");
        response.into_inner().lease.expect("a grant has a lease")
    }

    /// Waits until the minimum TTL has this value.
    async fn wait_for_ttl_min(&self, ttl_min_ms: u128) {
        let what = format!("ttl_min {ttl_min_ms} ms: {}", self.log());
        until(&what, async || {
            (self.granted_ms(Some(1)).await == ttl_min_ms).then_some(())
        })
        .await;
    }

    fn log(&self) -> String {
        fs::read_to_string(self.configuration.dir().join(LOG)).expect("the log")
    }

    /// Waits until the log contains this text.
    async fn logs(&self, text: &str) {
        until(text, async || self.log().contains(text).then_some(())).await;
    }
}

/// Returns a request for a new lock.
fn request(ttl_ms: Option<u64>) -> AcquireRequest {
    AcquireRequest {
        target: Some(LockTarget {
            name: Uuid::new_v4().to_string(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "worker".to_owned(),
            ..Owner::default()
        }),
        ttl: ttl_ms.map(|ttl_ms| {
            let ttl = Duration::from_millis(ttl_ms).try_into();
            ttl.expect("a short time")
        }),
        ..AcquireRequest::default()
    }
}

fn ttl_min(seconds: u8) -> String {
    format!("[limits]\nttl_min = \"{seconds}s\"\n")
}

#[tokio::test]
async fn a_file_that_is_written_or_replaced_takes_effect() {
    let broker = Broker::start_with(&ttl_min(1)).await;
    broker.wait_for_ttl_min(1_000).await;
    let mut stream = StreamClient::open_on(broker.api.clone()).await;
    broker.rewrite(&ttl_min(2));
    broker.wait_for_ttl_min(2_000).await;
    broker.logs("changed: limits.ttl_min from 1s to 2s").await;

    let other = broker.configuration.dir().join("other.toml");
    fs::write(&other, ttl_min(3)).expect("another file");
    fs::rename(&other, broker.configuration.file()).expect("one file system");
    broker.wait_for_ttl_min(3_000).await;

    fs::remove_file(broker.configuration.file()).expect("it is there");
    broker.logs(KEPT_MESSAGE).await;
    assert_eq!(broker.granted_ms(Some(1)).await, 3_000);
    broker.rewrite(&ttl_min(4));
    broker.wait_for_ttl_min(4_000).await;

    // The stream was opened before the change.
    let call = AcquireCall::new("on-a-stream", Duration::from_millis(1), Duration::ZERO);
    let call = stream.acquire(&call, 1).await;
    let lease = stream.expect_granted(call).await;
    assert_eq!(lease.ttl.expect("a lease has a ttl").seconds, 4);
}

#[tokio::test]
async fn a_repeat_after_a_change_is_the_same_call() {
    let broker = Broker::start_with(&ttl_min(20)).await;
    let request = AcquireRequest {
        request_id: Uuid::new_v4().to_string(),
        disconnect_grace: Duration::from_secs(25).try_into().ok(),
        ..request(Some(1))
    };
    let first = broker.granted(request.clone()).await;
    broker.rewrite(&ttl_min(30));
    broker.wait_for_ttl_min(30_000).await;
    let again = broker.granted(request).await;
    assert_eq!(again.lease_id, first.lease_id);
}

#[tokio::test]
async fn a_link_of_kubernetes_that_is_swapped_takes_effect() {
    let configuration = Configuration::new("");
    let mount = configuration.dir().to_owned();
    let place = |version: &str, seconds| {
        fs::create_dir(mount.join(version)).expect("a new directory");
        fs::write(mount.join(version).join("leasehold.toml"), ttl_min(seconds)).expect("a file");
    };
    place("..first", 1);
    symlink("..first", mount.join("..data")).expect("a link");
    fs::remove_file(configuration.file()).expect("it is there");
    symlink("..data/leasehold.toml", configuration.file()).expect("a link");
    let file = configuration.file().display().to_string();
    let broker = Broker::start(configuration, &["--config", &file], &[]).await;
    broker.wait_for_ttl_min(1_000).await;

    // The link is swapped twice, because the first reload could also result from the removal of the
    // old file.
    for (version, old, seconds) in [("..second", "..first", 2), ("..third", "..second", 3)] {
        place(version, seconds);
        symlink(version, mount.join("..data_tmp")).expect("a link");
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("one file system");
        fs::remove_dir_all(mount.join(old)).expect("it is there");
        broker.wait_for_ttl_min(u128::from(seconds) * 1_000).await;
    }
}

/// Reads a file that is a link into a directory that the broker does not watch.
#[tokio::test]
async fn sighup_takes_effect() {
    let elsewhere = Configuration::new(&ttl_min(1));
    let configuration = Configuration::new("");
    fs::remove_file(configuration.file()).expect("it is there");
    symlink(elsewhere.file(), configuration.file()).expect("a link");
    let file = configuration.file().display().to_string();
    let broker = Broker::start(configuration, &["--config", &file], &[]).await;
    broker.wait_for_ttl_min(1_000).await;
    fs::write(elsewhere.file(), ttl_min(2)).expect("write the configuration");
    broker.process.hang_up();
    broker.wait_for_ttl_min(2_000).await;
    broker.logs("SIGHUP: reloading the configuration").await;
}

#[tokio::test]
async fn without_a_file_sighup_is_logged_and_has_no_effect() {
    let broker = Broker::start(Configuration::new(""), &[], &[]).await;
    broker.process.hang_up();
    broker
        .logs("SIGHUP ignored: there is no --config file to reload")
        .await;
    assert_eq!(broker.granted_ms(Some(1)).await, 1_000);
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_all_problems_are_logged() {
    let broker = Broker::start_with(&ttl_min(2)).await;
    broker.wait_for_ttl_min(2_000).await;
    let path = broker.configuration.file().display().to_string();
    broker
        .rewrite("[limits]\nttl_min = \"3s\"\nwait_max = \"never\"\n[logg]\nfilter = \"debug\"\n");
    broker.logs(KEPT_MESSAGE).await;
    let log = broker.log();
    for problem in [
        format!(
            "limits.wait_max (from {path}): must be a time from 0s to 1h, such as 10s, not \"never\""
        ),
        format!("logg.filter (from {path}): no such key; did you mean log.filter?"),
    ] {
        let is_rejected = |line: &str| line.contains(" ERROR ") && line.ends_with(&problem);
        assert!(log.lines().any(is_rejected), "{problem}: {log}");
    }
    assert_eq!(broker.granted_ms(Some(1)).await, 2_000);
    // The broker's log is in the same directory and must not cause a reload. A missing reload is no
    // event that the test could wait for.
    sleep(IDLE).await;
    broker.rewrite("[limits\n");
    broker.logs(&format!("{path}, line 1, column 8: ")).await;
    assert_eq!(broker.granted_ms(Some(1)).await, 2_000);
    broker.rewrite(&ttl_min(4));
    broker.wait_for_ttl_min(4_000).await;
    assert_eq!(
        broker.log().matches(KEPT_MESSAGE).count(),
        2,
        "{}",
        broker.log()
    );
}

#[tokio::test]
async fn what_needs_a_restart_is_named_and_the_rest_takes_effect() {
    let broker = Broker::start_with(&ttl_min(1)).await;
    broker.rewrite(
        "[limits]\nttl_min = \"2s\"\nttl_max = \"30s\"\nlock_delay_max = \"20s\"\n\
         [store]\nurl = \"redis://me:canary@h\"\n",
    );
    broker.wait_for_ttl_min(2_000).await;
    let waiting = "WARN leasehold_server::reload: restart required to change: \
                   limits.lock_delay_max from 10s to 20s, limits.ttl_max from 60s to 30s, \
                   store.url from nothing to redis://me:***@h";
    broker.logs(waiting).await;
    assert_eq!(broker.granted_ms(Some(50_000)).await, 50_000);
    assert!(!broker.log().contains("canary"), "{}", broker.log());
}

/// Sets a minimum TTL above the maximum TTL in use, which would leave no valid TTL.
#[tokio::test]
async fn what_fits_only_what_needs_a_restart_waits_for_it() {
    let broker = Broker::start_with("").await;
    broker.rewrite("[limits]\nttl_min = \"90s\"\nttl_max = \"2m\"\n");
    let waiting = "restart required to change: limits.ttl_default from 10s to 1m 30s, \
                   limits.ttl_max from 60s to 2m, limits.ttl_min from 1s to 90s";
    broker.logs(waiting).await;
    assert_eq!(broker.granted_ms(Some(1)).await, 1_000);
    assert_eq!(broker.granted_ms(Some(100_000)).await, 60_000);
}

#[tokio::test]
async fn flags_and_environment_keep_winning() {
    let configuration = Configuration::new("");
    let file = configuration.file().display().to_string();
    let args = ["--config", &file, "--log", "info"];
    let env = [("LEASEHOLD__LIMITS__TTL_MIN", "3s")];
    let broker = Broker::start(configuration, &args, &env).await;
    broker.rewrite("[limits]\nttl_min = \"2s\"\nttl_default = \"7s\"\n[log]\nfilter = \"debug\"\n");
    broker
        .logs("changed: limits.ttl_default from 10s to 7s")
        .await;
    assert_eq!(broker.granted_ms(None).await, 7_000);
    assert_eq!(broker.granted_ms(Some(1)).await, 3_000);
    let log = broker.log();
    let mut is_rejected = log.lines().filter(|line| line.contains("::reload"));
    let is_silent = |line: &str| !line.contains("limits.ttl_min") && !line.contains("log.filter");
    assert!(is_rejected.all(is_silent), "{log}");
}

#[tokio::test]
async fn wait_max_and_the_log_filter_take_effect() {
    let broker = Broker::start_with("").await;
    let held = AcquireCall::new("held", Duration::from_secs(60), Duration::ZERO);
    broker
        .client
        .acquire_at(0, &held)
        .await
        .expect("it is free");
    assert!(!broker.log().contains(" DEBUG "));
    broker.rewrite("[limits]\nwait_max = \"1ms\"\n[log]\nfilter = \"debug\"\n");
    broker.logs("changed: limits.wait_max from 1h to 1ms").await;
    broker.logs("changed: log.filter from info to debug").await;
    let waiting = AcquireCall::new("held", Duration::from_secs(60), Duration::from_secs(3_000));
    let refused = broker
        .client
        .acquire_at(0, &waiting)
        .await
        .expect_err("it is held");
    assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    broker.logs(" DEBUG ").await;
    broker.rewrite("");
    broker.logs("changed: log.filter from debug to info").await;
}

#[tokio::test]
async fn a_stop_goes_by_the_newest_drain_timeout() {
    let mut broker = Broker::start_with("[server]\ndrain_timeout = \"1h\"\n").await;
    let _open = open_reflection_stream(broker.api.clone()).await;
    broker.rewrite("[server]\ndrain_timeout = \"100ms\"\n");
    broker
        .logs("changed: server.drain_timeout from 1h to 100ms")
        .await;
    broker.process.terminate();
    assert_eq!(broker.process.wait_for_exit().await, Some(0));
    broker.logs("drain_timeout has passed").await;
}

#[tokio::test]
async fn max_hold_max_cuts_every_hold_that_begins_after_it() {
    let broker = Broker::start_with("").await;
    let before = AcquireRequest {
        request_id: Uuid::new_v4().to_string(),
        ..request(Some(50_000))
    };
    let held = broker.granted(before.clone()).await;
    assert_eq!(broker.granted_ms(Some(50_000)).await, 50_000);
    broker.rewrite("[limits]\nmax_hold_max = \"20s\"\n");
    broker
        .logs("changed: limits.max_hold_max from nothing to 20s")
        .await;
    for (asked_s, cut_s) in [(None, 20), (Some(40), 20), (Some(10), 10)] {
        let request = AcquireRequest {
            max_hold: asked_s.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
            ..request(Some(50_000))
        };
        let ttl = broker
            .granted(request)
            .await
            .ttl
            .expect("a lease has a ttl");
        assert_eq!((ttl.seconds, ttl.nanos), (cut_s, 0), "{asked_s:?}");
    }
    let again = broker.granted(before).await;
    assert_eq!(again.lease_id, held.lease_id, "the same call as before");
    assert_eq!(again.ttl, held.ttl);
}
