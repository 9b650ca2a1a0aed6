//! Attacks by web pages in a real browser, with every RPC and every form: from another origin,
//! through a host name that resolves to the broker, and with the certificate of an operator.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use leasehold_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{LockRef, SetLockLimitRequest},
};
use leasehold_tests::{
    access::{
        files_and_callers::AccessFiles,
        fixture::{ALLOW_ALL_POLICY, acquire_request},
    },
    broker::{
        deployment::Deployment,
        in_process::InProcessBroker,
        process::{BrokerOptions, BrokerProcess},
        tls::BrokerTls,
    },
    client::{
        operator::unsafe_force_release_request,
        unary::{AcquireCall, Client, HeldLease},
    },
    console::browser::Browser,
    net::{raw_http2::frames::message_prefix, web_site::WebSite},
    telemetry::scrape::{Scrape, request_metrics},
    until::until,
};
use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::{Value, json};
use tokio::net::TcpStream;

const LOCK: &str = "payroll";
const FREE: &str = "invoices";
const TTL: Duration = Duration::from_secs(60);
/// Domain of the attacker. The test driver makes the browser resolve all names in it to this
/// machine.
const FOREIGN_HOST: &str = "evil.example";

/// Script that sends each request in all ways that are possible in a page, and returns what the
/// page can read.
const TRY: &str = r"return await page.evaluate(async ({ calls, forms }) => {
  const read = [];
  const attempt = async (what, url, request) => {
    try {
      const answer = await fetch(url, { credentials: 'include', ...request });
      read.push({ what: `${what} ${url}`, kind: answer.type, status: answer.status, text: await answer.text() });
    } catch (error) {
      read.push({ what: `${what} ${url}`, kind: 'error', status: 0, text: '' });
    }
  };
  const typed = (type) => ({ 'content-type': type });
  for (const { url, bytes } of calls) {
    const [method, mode, body] = ['POST', 'no-cors', new Uint8Array(bytes)];
    await attempt('text', url, { method, mode, body, headers: typed('text/plain') });
    await attempt('form', url, { method, mode, body, headers: typed('application/x-www-form-urlencoded') });
    await attempt('untyped', url, { method, mode, body });
    await attempt('get', url, { mode });
    await attempt('grpc', url, { method, body, headers: typed('application/grpc') });
    await attempt('grpc+proto', url, { method, body, headers: typed('application/grpc+proto') });
    navigator.sendBeacon(url, new Blob([body], { type: 'text/plain' }));
  }
  for (const { url, fields } of forms) {
    const body = new URLSearchParams(fields);
    await attempt('form', url, { method: 'POST', mode: 'no-cors', body });
    const frame = document.createElement('iframe');
    frame.name = `answer-${read.length}`;
    document.body.append(frame);
    const form = Object.assign(document.createElement('form'), { method: 'post', action: url, target: frame.name });
    for (const [name, value] of Object.entries(fields)) {
      form.append(Object.assign(document.createElement('input'), { name, value }));
    }
    document.body.append(form);
    const answered = new Promise((resolve) => { frame.onload = resolve; });
    form.submit();
    await answered;
  }
  return read;
}, ";

/// Part of a response that a page can read.
#[derive(Debug, serde::Deserialize)]
struct ReadableResponse {
    what: String,
    kind: String,
    status: u16,
    text: String,
}

/// Makes the current page send all requests to these listeners.
async fn send_from_page(
    browser: &mut Browser,
    listeners: &[String],
    held: &HeldLease,
) -> Vec<ReadableResponse> {
    let mut calls = Vec::new();
    let mut forms = Vec::new();
    for listener in listeners {
        for path in paths() {
            let bytes = message(&path, held);
            calls.push(json!({ "url": format!("{listener}{path}"), "bytes": bytes }));
        }
        let lease = &held.lease.lease_id;
        let fields = json!({
            "namespace": "default", "name": LOCK, "lease": lease, "lease_id": lease, "reason": "rebinding",
            "how": "unsafe", "mark": "",
        });
        for path in ["/lock/force-release", "/log-filter"] {
            forms.push(json!({ "url": format!("{listener}{path}"), "fields": fields }));
        }
    }
    let all = json!({ "calls": calls, "forms": forms });
    let read = browser.run(&format!("{TRY}{all})")).await;
    let read: Vec<ReadableResponse> = serde_json::from_value(read).expect("what was read");
    assert_eq!(read.len(), calls.len() * 6 + forms.len());
    read
}

/// Returns the paths of all RPCs.
fn paths() -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("descriptions");
    let services = set.file.iter().flat_map(|file| {
        let service = |service: &prost_types::ServiceDescriptorProto| {
            let of = format!("/{}.{}", file.package(), service.name());
            let path =
                |method: &prost_types::MethodDescriptorProto| format!("{of}/{}", method.name());
            service.method.iter().map(path).collect::<Vec<_>>()
        };
        file.service.iter().flat_map(service).collect::<Vec<_>>()
    });
    let paths: BTreeSet<_> = services.collect();
    assert!(paths.len() > 10, "{paths:?}");
    paths
}

/// Returns the number of RPCs with a path that `is_one` accepts.
fn number(is_one: impl Fn(&String) -> bool) -> f64 {
    let number = paths().iter().filter(|path| is_one(path)).count();
    f64::from(u32::try_from(number).expect("few"))
}

/// Returns the message of a call that would have an effect if it succeeded.
fn message(path: &str, held: &HeldLease) -> Vec<u8> {
    let bytes = match path.rsplit('/').next() {
        Some("SetLockLimit") => SetLockLimitRequest {
            lock: Some(LockRef {
                namespace: String::new(),
                name: FREE.to_owned(),
            }),
            limit: 7,
        }
        .encode_to_vec(),
        Some("Acquire") => acquire_request(FREE, TTL).encode_to_vec(),
        Some("ForceReleaseLease") => {
            unsafe_force_release_request(LOCK, &held.lease.lease_id).encode_to_vec()
        }
        _ => Vec::new(),
    };
    [message_prefix(bytes.len()).as_slice(), &bytes].concat()
}

async fn scraped(admin: SocketAddr) -> Scrape {
    let wire = TcpStream::connect(admin).await.expect("it listens");
    let (status, answer) = request_metrics(wire, None).await;
    assert_eq!(status, 200);
    Scrape::parse(&answer)
}

fn calls(scrape: &Scrape) -> f64 {
    scrape.sum("grpc_server_started_total", &[])
}

fn refused(scrape: &Scrape, reason: &str) -> f64 {
    scrape.sum("leasehold_access_refusals_total", &[("reason", reason)])
}

async fn assert_untouched(observer: &Client, held: &HeldLease) {
    let lock = observer.get_lock(LOCK).await.expect("GetLock works");
    let lock = lock.expect("it is held");
    assert_eq!(lock.holders[0].lease_id, held.lease.lease_id);
    assert_eq!(observer.get_lock(FREE).await.expect("GetLock works"), None);
}

#[tokio::test]
async fn pages_of_others_do_and_read_nothing() {
    let broker = InProcessBroker::start_at("0.0.0.0").await;
    let local = |at: SocketAddr| SocketAddr::from(([127, 0, 0, 1], at.port()));
    let (api, admin) = (local(broker.api), local(broker.admin));
    let observer = Client::new("judge", &[api], 0);
    let call = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let held = until("a grant", async || observer.acquire_at(0, &call).await.ok()).await;
    let before = scraped(admin).await;

    let mut browser = Browser::start().await;
    browser.open(admin, &json!({})).await;
    let fixture = WebSite::start().await;
    let page = json!(format!("http://{FOREIGN_HOST}:{}/", fixture.addr().port()));
    browser.run(&format!("await page.goto({page})")).await;
    let listeners = [format!("http://{api}"), format!("http://{admin}")];
    for read in send_from_page(&mut browser, &listeners, &held).await {
        assert!(
            ["opaque", "error"].contains(&&*read.kind),
            "{}: {read:?}",
            read.what
        );
        assert_eq!(read.text, "", "{}: {read:?}", read.what);
    }
    let between = scraped(admin).await;
    let refusals = refused(&between, "not_grpc") - refused(&before, "not_grpc");
    // Counts each way that needs no CORS permission. The API listener does not support HTTP/1.1.
    let admin_paths = number(|path| path.contains("AdminService"));
    assert!(
        refusals >= 4.0 * admin_paths,
        "{refusals} of {admin_paths} RPCs"
    );

    let rebound = format!("http://rebound.{FOREIGN_HOST}:{}", admin.port());
    let goto = Value::from(format!("{rebound}/locks"));
    let script = format!("return (await page.goto({goto})).status()");
    assert_eq!(browser.run(&script).await, json!(421));
    for read in send_from_page(&mut browser, &[rebound], &held).await {
        assert_eq!(read.status, 421, "{}: {read:?}", read.what);
        assert!(!read.text.contains(LOCK), "{}: {read:?}", read.what);
    }
    let after = scraped(admin).await;
    let refusals = refused(&after, "host") - refused(&between, "host");
    let paths = number(|_| true);
    assert!(refusals >= 6.0 * paths, "{refusals} of {paths} RPCs");
    assert!((calls(&after) - calls(&before)).abs() < f64::EPSILON);
    assert_untouched(&observer, &held).await;
    broker.stop().await;
}

#[tokio::test]
async fn pages_do_nothing_with_the_certificate_of_an_operator() {
    let deployment = Deployment::start(1).await;
    let (tls, access_files) = (
        BrokerTls::create(true),
        AccessFiles::new(ALLOW_ALL_POLICY, &[]),
    );
    let mut options = BrokerOptions::for_store(deployment.redis.url());
    options.env.extend(tls.settings(true));
    options.env.extend(access_files.settings());
    let broker = BrokerProcess::start(&options).await;
    let observer = Client::new("judge", &deployment.addrs(), 0);
    let call = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let held = observer.acquire_at(0, &call).await.expect("it is free");
    let operator = tls
        .client_authority
        .as_ref()
        .expect("mutual")
        .client("operator");
    tls.write("operator.pem", &operator.pem());
    tls.write("operator.key", &operator.key_pem());

    let listeners = [broker.addr(), broker.admin()].map(|at| format!("https://{at}"));
    let certificates = listeners.clone().map(|origin| {
        json!({ "origin": origin, "certPath": tls.path("operator.pem"), "keyPath": tls.path("operator.key") })
    });
    let mut browser = Browser::start().await;
    let options = json!({ "ignoreHTTPSErrors": true, "clientCertificates": certificates });
    browser.open(broker.admin(), &options).await;
    let goto = Value::from(format!("{}/locks", listeners[1]));
    browser.run(&format!("await page.goto({goto})")).await;
    let own = browser.text("body").await;
    assert!(own.contains(LOCK), "the certificate is good: {own}");

    // The page is another site, even for a browser that ignores ports.
    let fixture = WebSite::start().await;
    let goto = Value::from(format!("http://localhost:{}/", fixture.addr().port()));
    browser.run(&format!("await page.goto({goto})")).await;
    for read in send_from_page(&mut browser, &listeners, &held).await {
        assert!(
            ["opaque", "error"].contains(&&*read.kind),
            "{}: {read:?}",
            read.what
        );
        assert_eq!(read.text, "", "{}: {read:?}", read.what);
    }
    let log = broker.log();
    assert!(!log.contains("an operator has"), "{log}");
    assert_untouched(&observer, &held).await;
}
