//! Secrets in output. At log level TRACE, no secret occurs in logs, responses or exported spans,
//! even if errors occur. Owner labels are visible only to callers that may read the lock.

use std::{path::Path, time::Duration};

use leasehold_proto::v1::{
    AcquireRequest, GetLockRequest, HoldAcquire, HoldRequest, Lease, LockTarget, Owner,
    RefreshCredential, ReleaseRequest, RenewRequest, hold_request::Message as Ask,
    hold_response::Message as Told,
};
use leasehold_tests::{
    access::files_and_callers::{AccessFiles, Caller},
    broker::process::{BrokerOptions, BrokerProcess},
    process::temp_dir::TempDir,
    redis::server::RedisServer,
    scale::print_figures,
    telemetry::collector::Collector,
};
use serde_json::json;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use uuid::Uuid;

const PASSWORD: &str = "canary-password-81d0";
const TOKEN: &str = "canary-token-5c1e";
const LABEL: &str = "canary-label-47f2";
/// Bearer token of the broker at the collector.
const COLLECTOR_TOKEN: &str = "canary-collector-2b90";
const WRONG: &str = "canary-wrong-token-9a77";
const DEPLOYMENT_KEY: &str = "cafe0123456789abcdef0123456789abcdef0123456789abcdef0123456789ca";
const TIME_LIMIT: Duration = Duration::from_secs(5);
const RULES: &str = r#"
    [[rule]]
    callers = ["*"]
    verbs = ["acquire", "observe", "list"]
"#;

/// Secrets that must not occur in any output, and all responses.
#[derive(Default)]
struct SecretCheck {
    secrets: Vec<String>,
    /// Lease tokens that were returned to their holders.
    granted: Vec<String>,
    answers: String,
}

impl SecretCheck {
    fn record<T>(&mut self, answer: Result<T, Status>) -> Option<T> {
        answer
            .map_err(|status| self.answers += &format!("{status:?} {status}\n"))
            .ok()
    }
}

fn acquire(request_id: &str) -> AcquireRequest {
    AcquireRequest {
        target: Some(LockTarget {
            name: "a".to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "worker".to_owned(),
            labels: [("team".to_owned(), LABEL.to_owned())].into(),
            ..Owner::default()
        }),
        request_id: request_id.to_owned(),
        ..AcquireRequest::default()
    }
}

/// Makes calls with valid and invalid lease tokens.
async fn calls(caller: &Caller, seen: &mut SecretCheck) {
    let mut locks = caller.locks.clone();
    let request_id = Uuid::new_v4().to_string();
    let result = locks.acquire(acquire(&request_id)).await;
    let lease = seen.record(result);
    let lease = lease.and_then(|result| result.into_inner().lease);
    let held = locks.acquire(acquire(&Uuid::new_v4().to_string())).await;
    seen.record(held);
    let Some(lease) = lease else { return };
    let look = GetLockRequest {
        name: "a".to_owned(),
        ..GetLockRequest::default()
    };
    let reply = caller.inspection.clone().get_lock(look).await;
    if let Some(lock) = seen.record(reply) {
        seen.answers += &format!("{lock:?}");
    }
    seen.secrets.push(lease.lease_token.clone());
    let wrong = Lease {
        lease_token: WRONG.to_owned(),
        ..lease.clone()
    };
    let broken = Lease {
        lease_id: WRONG.to_owned(),
        ..lease.clone()
    };
    for shown in [&wrong, &broken, &lease] {
        let lease = Some(shown.clone());
        let renewed = locks.renew(RenewRequest { lease, ttl: None }).await;
        seen.record(renewed);
        let release = ReleaseRequest {
            lease: Some(shown.clone()),
            ..ReleaseRequest::default()
        };
        let released = locks.release(release).await;
        seen.record(released);
    }
    stream(caller, seen).await;
}

async fn stream(caller: &Caller, seen: &mut SecretCheck) {
    let (asks, requests) = mpsc::channel(8);
    let mut locks = caller.locks.clone();
    let response = locks.hold(ReceiverStream::new(requests)).await;
    let Some(response) = seen.record(response) else {
        return;
    };
    let mut response = response.into_inner();
    let refresh = RefreshCredential {
        call_id: 1,
        authorization: format!("Bearer {WRONG}"),
    };
    let call = HoldAcquire {
        call_id: 2,
        request: Some(acquire(&Uuid::new_v4().to_string())),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    for message in [Ask::RefreshCredential(refresh), Ask::Acquire(call)] {
        let message = Some(message);
        let sent = asks.send(HoldRequest { message }).await;
        sent.expect("the stream lives");
        let answer = timeout(TIME_LIMIT, response.message())
            .await
            .expect("an answer");
        if let Some(Some(answer)) = seen.record(answer) {
            if let Some(Told::Granted(granted)) = &answer.message {
                let lease = granted.lease.as_ref().expect("a grant has a lease");
                seen.granted.push(lease.lease_token.clone());
            }
            seen.answers += &format!("{answer:?}");
        }
    }
}

/// Returns options of a broker that logs and traces everything, with a secret of every kind.
fn options(
    access_files: &AccessFiles,
    redis: &RedisServer,
    collector: &Collector,
    dir: &Path,
) -> BrokerOptions {
    let key = dir.join("deployment.key");
    std::fs::write(&key, DEPLOYMENT_KEY).expect("write a file");
    let url = redis
        .url()
        .replace("redis://", &format!("redis://:{PASSWORD}@"));
    let mut options = access_files.options(url);
    for (name, value) in [
        ("LOG__FILTER", "trace"),
        ("STORE__DEPLOYMENT_KEY_FILE", &key.display().to_string()),
        ("TRACING__OTLP_ENDPOINT", &collector.url()),
        ("TRACING__SAMPLE_RATIO", "1"),
    ] {
        options
            .env
            .push((format!("LEASEHOLD__{name}"), value.to_owned()));
    }
    let headers = format!("authorization=Bearer {COLLECTOR_TOKEN}");
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS".to_owned(), headers);
    options.env.push(headers);
    options
}

#[tokio::test]
async fn no_secret_is_logged_or_answered() {
    let redis = RedisServer::start_with(&["--requirepass", PASSWORD]).await;
    let collector = Collector::start().await;
    let access_files = AccessFiles::new(RULES, &[("ci", TOKEN)]);
    let dir = TempDir::new("canary");
    let options = options(&access_files, &redis, &collector, dir.path());
    options.init_store().await;
    let mut broker = BrokerProcess::start(&options).await;
    let caller = |token: &str| Caller::new(broker.addr(), broker.admin(), Some(token));
    let signed = access_files.issuer.token("alice", 60, json!({}));
    let expired = access_files.issuer.token("alice", -60, json!({}));
    let mut seen = SecretCheck::default();
    for token in [TOKEN, WRONG, &signed, &expired] {
        calls(&caller(token), &mut seen).await;
        seen.secrets.push(token.to_owned());
    }
    // Messages about invalid files are checked as well.
    access_files.set_tokens(&[("ci", TOKEN)]);
    access_files.set_policy(WRONG);
    let (succeeded, output) = options.run("check-config", &["--show"]).await;
    assert!(!succeeded, "{output}");
    seen.answers += &output;
    seen.secrets
        .extend([PASSWORD, DEPLOYMENT_KEY, COLLECTOR_TOKEN].map(str::to_owned));
    // The last spans are exported at shutdown.
    broker.terminate();
    assert_eq!(broker.wait_for_exit().await, Some(0));

    let granted = seen.granted.clone();
    seen.secrets.extend(granted.clone());
    let log = broker.log();
    assert!(log.contains("TRACE") && log.len() > 10_000, "{}", log.len());
    assert!(seen.answers.contains("NOT_HOLDER") && seen.answers.contains("Granted"));
    assert!(seen.secrets.len() >= 8, "{}", seen.secrets.len());
    let shown = |text: &str| {
        let secrets = seen.secrets.iter();
        let shown = secrets.filter(|secret| text.contains(secret.as_str()));
        shown.cloned().collect::<Vec<_>>()
    };
    print_figures(&format!(
        "canary: log={}B spans={} answers={}B secrets={}",
        log.len(),
        collector.received().len(),
        seen.answers.len(),
        seen.secrets.len()
    ));
    assert_eq!(shown(&log), Vec::<String>::new(), "in the log");
    assert!(!log.contains(LABEL), "a label in the log");
    assert!(log.contains(" audit: denied"), "an audit line");
    let spans = format!("{:?}", collector.received());
    assert!(
        spans.contains("queue.wait") || spans.contains("lease.granted"),
        "{spans}"
    );
    assert_eq!(shown(&spans), Vec::<String>::new(), "in a span");
    assert!(!spans.contains(LABEL), "a label in a span");
    assert!(
        seen.answers.contains(LABEL),
        "a label in an answer to who may observe"
    );
    // A lease token is returned only to the caller that was granted the lease.
    let answered = shown(&seen.answers);
    assert_eq!(answered, granted, "in an answer");
}
