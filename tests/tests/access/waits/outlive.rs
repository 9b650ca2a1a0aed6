//! Nothing outlives the credential that admitted it: each kind of credential, ended in each way that it
//! can, while each long use of the API is under way.

#![expect(
    clippy::disallowed_methods,
    reason = "a test owns its tasks, and a TaskTracker would give it no answers"
)]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireResponse, ErrorReason, LeaseEndReason, WatchLocksRequest, WatchLocksResponse,
    hold_response::Message as Told, inspection_service_client::InspectionServiceClient,
    lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker_tls::handshake,
    callers::{Issuer, LEEWAY, Shows},
    certificates::{Authority, Signed, client_config},
    client::{AcquireCall, Client, Held},
    clock::boottime,
    locked_site::{LockedSite, WORKER, trust},
    scale::figures,
    status::reason,
    stream_client::StreamClient,
    until::until,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::client::TlsStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

const TTL: Duration = Duration::from_secs(4);
const WAIT: Duration = Duration::from_secs(120);
/// How long a credential is good that expires.
const LIFE: Duration = Duration::from_secs(10);
/// Files are looked at each second.
const SEEN: Duration = Duration::from_secs(3);
/// A connection is closed so soon after its certificate has ended.
const CLOSED: Duration = Duration::from_secs(5);
/// Times in certificates and tokens are whole seconds.
const SECOND: Duration = Duration::from_secs(1);
const TOKEN: &str = "the worker's token, 5d1e";
const OTHER: &str = "the bystander's token, 81ac";
/// Names the connections of callers with tokens, who have to show some certificate, too.
const CARRIER: &str = "carrier";
const CONTENDED: &str = "contended";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const FRAME_HEAD: usize = 9;
const GO_AWAY: u8 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credential {
    Static,
    Signed,
    Certificate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is taken out of the file that it is known by.
    Removed,
    /// The rules name its caller no more.
    RuleWithdrawn,
    Expired,
    /// Whoever has issued it counts no more; others do.
    AuthorityRemoved,
}

/// Everything but: a static token neither expires nor has an authority, and no file lists certificates.
const MATRIX: [(Credential, End); 9] = [
    (Credential::Static, End::Removed),
    (Credential::Static, End::RuleWithdrawn),
    (Credential::Signed, End::Removed),
    (Credential::Signed, End::RuleWithdrawn),
    (Credential::Signed, End::Expired),
    (Credential::Signed, End::AuthorityRemoved),
    (Credential::Certificate, End::RuleWithdrawn),
    (Credential::Certificate, End::Expired),
    (Credential::Certificate, End::AuthorityRemoved),
];

/// Every long use by one caller.
struct Uses {
    unary: JoinHandle<Result<AcquireResponse, Status>>,
    stream_wait: (StreamClient, i64),
    lease: (StreamClient, String),
    watch: Streaming<WatchLocksResponse>,
    session: TlsStream<TcpStream>,
}

struct Site {
    locked: LockedSite,
    /// Signs certificates that count until the end.
    lasting: Authority,
    held: Held,
}

impl Site {
    async fn start() -> Self {
        let locked = LockedSite::start(&[TOKEN]).await;
        let lasting = Authority::new("clients, for good");
        let known = locked.tls.clients.as_ref().expect("mutual").pem();
        locked.tls.write("clients.pem", &(known + &lasting.pem()));
        locked
            .doors
            .set_tokens(&[(WORKER, TOKEN), ("bystander", OTHER)]);
        locked.doors.set_policy(&policy(&["worker", "bystander"]));
        let held = AcquireCall::new(CONTENDED, WAIT / 2, Duration::ZERO);
        let held = locked.judge.acquire_at(0, &held).await;
        let site = Self {
            locked,
            lasting,
            held: held.expect("it is free"),
        };
        until("the bystander's token counts", async || {
            let mut looks = site.looks(&site.lasting.client(CARRIER), Some(OTHER)).await;
            looks.watch_locks(WatchLocksRequest::default()).await.ok()
        })
        .await;
        site
    }

    async fn connection(&self, shown: &Signed) -> Channel {
        let tls = trust(&[&self.locked.tls.authority], shown);
        let endpoint = Endpoint::from_shared(self.locked.url()).expect("a URL");
        let endpoint = endpoint.tls_config(tls).expect("good certificates");
        endpoint.connect().await.expect("a good certificate")
    }

    async fn looks(
        &self,
        shown: &Signed,
        token: Option<&str>,
    ) -> InspectionServiceClient<tonic::service::interceptor::InterceptedService<Channel, Shows>>
    {
        let shows = Shows(token.map(str::to_owned));
        InspectionServiceClient::with_interceptor(self.connection(shown).await, shows)
    }

    /// What the worker shows: a certificate, and a token beside it.
    fn credential(&self, credential: Credential, end: End) -> (Signed, Option<String>) {
        let clients = self.locked.tls.clients.as_ref().expect("mutual");
        match (credential, end) {
            (Credential::Static, _) => (self.lasting.client(CARRIER), Some(TOKEN.to_owned())),
            (Credential::Signed, _) => {
                let seconds = |time: Duration| i64::try_from(time.as_secs()).expect("short");
                let good_for = match end {
                    End::Expired => seconds(LIFE) - seconds(LEEWAY),
                    _ => 600,
                };
                let issuer = &self.locked.doors.issuer;
                let token = issuer.token(WORKER, good_for, json!({}));
                (self.lasting.client(CARRIER), Some(token))
            }
            (Credential::Certificate, End::Expired) => (clients.client_for(WORKER, LIFE), None),
            (Credential::Certificate, _) => (clients.client(WORKER), None),
        }
    }

    async fn begin(&self, shown: &Signed, token: Option<&str>, who: &str) -> Uses {
        let shows = || Shows(token.map(str::to_owned));
        let wait = || AcquireCall::new(CONTENDED, TTL, WAIT);
        let before = self.queue().await;

        let mut stream = StreamClient::open_as(self.connection(shown).await, shows()).await;
        let own = AcquireCall::new(&format!("held by {who}"), TTL, Duration::ZERO);
        let call = stream.acquire(&own, 1).await;
        let lease_id = stream.granted(call).await.lease_id;
        stream.beat(TTL / 8);
        let lease = (stream, lease_id);

        let mut stream = StreamClient::open_as(self.connection(shown).await, shows()).await;
        let call = stream.acquire(&wait(), 1).await;
        stream.queued(call).await;
        stream.beat(TTL / 8);
        let stream_wait = (stream, call);

        let locks = LockServiceClient::with_interceptor(self.connection(shown).await, shows());
        let request = Client::new(who, &[], 0).acquire_request(&wait());
        let unary = tokio::spawn(async move {
            let answered = locks.clone().acquire(request).await;
            answered.map(tonic::Response::into_inner)
        });
        until("both wait", async || {
            (self.queue().await == before + 2).then_some(())
        })
        .await;

        let mut looks = self.looks(shown, token).await;
        let watch = looks.watch_locks(WatchLocksRequest::default()).await;
        let config = client_config(&self.locked.tls.authority, Some(shown));
        let session = handshake(self.locked.broker.addr(), config).await;
        let mut session = session.expect("a good certificate");
        let begin = [PREFACE, &SETTINGS].concat();
        session.write_all(&begin).await.expect("it is read");
        session.flush().await.expect("it is read");
        Uses {
            unary,
            stream_wait,
            lease,
            watch: watch.expect("it may").into_inner(),
            session,
        }
    }

    fn end(&self, credential: Credential, end: End) {
        let doors = &self.locked.doors;
        match (credential, end) {
            (_, End::Expired) => {}
            (_, End::RuleWithdrawn) => doors.set_policy(&policy(&["bystander"])),
            (Credential::Static, _) => doors.set_tokens(&[("bystander", OTHER)]),
            (Credential::Signed, End::Removed) => doors.set_keys(&[]),
            (Credential::Signed, End::AuthorityRemoved) => doors.set_keys(&[&Issuer::new("key-2")]),
            (Credential::Certificate, _) => {
                self.locked.tls.write("clients.pem", &self.lasting.pem());
            }
        }
    }

    async fn queue(&self) -> i32 {
        let lock = self.locked.judge.get_lock(CONTENDED).await;
        lock.expect("GetLock works")
            .expect("it is held")
            .queue_length
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlives_the_credential_that_admitted_it() {
    let mut cells = 0;
    for (credential, end) in MATRIX {
        let about = format!("{credential:?} {end:?}");
        let site = Site::start().await;
        let bystander = site
            .begin(&site.lasting.client(CARRIER), Some(OTHER), "bystander")
            .await;
        let made = boottime();
        let (shown, token) = site.credential(credential, end);
        let worker = site.begin(&shown, token.as_deref(), WORKER).await;
        site.end(credential, end);
        let ended = match end {
            End::Expired => made + LIFE,
            _ => boottime(),
        };
        let why = match end {
            End::RuleWithdrawn => ErrorReason::PermissionDenied,
            _ => ErrorReason::Unauthenticated,
        };
        let last = ended + SEEN;
        cells += over(worker, why, last, &about).await;
        assert!(boottime() + SECOND >= ended, "{about}: too soon");
        cells += session_is_over(credential, end, (&site, &shown), ended).await;

        // Their places went with them, and only theirs.
        until("the worker has left the line", async || {
            (site.queue().await == 2).then_some(())
        })
        .await;
        goes_on(site, bystander, &about).await;
    }
    figures(&format!(
        "outlive: {} credentials and ends, {cells} uses, leaks=0",
        MATRIX.len()
    ));
}

/// That all of it is over until then, and says why. Returns how many uses there were.
async fn over(worker: Uses, why: ErrorReason, last: Duration, about: &str) -> usize {
    let in_time = || (last + SECOND).saturating_sub(boottime());
    let Uses {
        unary,
        stream_wait: (mut waits, call),
        lease: (mut holds, lease_id),
        mut watch,
        session: _session,
    } = worker;
    let unary = async {
        let answered = timeout(in_time(), unary).await.expect(about);
        let refused = answered.expect("no panic").expect_err(about);
        assert_eq!(reason(&refused), Some(why), "{about}: {refused:?}");
    };
    let stream_wait = async {
        if why == ErrorReason::PermissionDenied {
            let refused = timeout(in_time(), waits.refused(call)).await.expect(about);
            assert_eq!(refused.reason(), why, "{about}: {refused:?}");
        } else {
            timeout(in_time(), waits.ended()).await.expect(about);
        }
    };
    let lease = async {
        let ended = holds.heard(|told| match told {
            Told::Ended(ended) => Some(ended),
            Told::Ack(_) | Told::Reconnect(_) => None,
            other => panic!("{about}: {other:?}"),
        });
        let ended = timeout(in_time(), ended).await.expect(about);
        assert_eq!(ended.lease_id, lease_id);
        assert_eq!(ended.reason(), LeaseEndReason::CredentialExpired, "{about}");
    };
    let watch = async {
        loop {
            let next = timeout(in_time(), watch.message()).await.expect(about);
            match next {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{about}: the watch ends without a reason"),
                Err(status) => break assert_eq!(reason(&status), Some(why), "{about}: {status:?}"),
            }
        }
    };
    tokio::join!(unary, stream_wait, lease, watch);
    4
}

/// That no connection of a certificate that has ended is left, and no other one is closed.
async fn session_is_over(
    credential: Credential,
    end: End,
    (site, shown): (&Site, &Signed),
    ended: Duration,
) -> usize {
    if credential != Credential::Certificate || end == End::RuleWithdrawn {
        return 0;
    }
    let config = client_config(&site.locked.tls.authority, Some(shown));
    // With TLS 1.3 the client knows it with the first answer.
    let again = handshake(site.locked.broker.addr(), config).await;
    if let Ok(mut again) = again {
        let read = again.read_u8().await;
        read.expect_err("no other connection is made with it");
    }
    assert!(boottime() <= ended + SEEN + CLOSED);
    1
}

/// That the bystander keeps all that it has, and gets what it waits for.
async fn goes_on(site: Site, bystander: Uses, about: &str) {
    let Uses {
        unary,
        stream_wait: (mut waits, call),
        lease: (mut holds, lease_id),
        mut watch,
        session: _session,
    } = bystander;
    holds.is_read().await;
    let release = site.locked.judge.release_at(0, &site.held).await;
    release.expect("the holder");
    let first = waits.granted(call).await;
    waits.release(&first.lease_id).await;
    let second = timeout(SEEN, unary).await.expect(about);
    second.expect("no panic").expect(about);
    let call = holds.release(&lease_id).await;
    let released = holds.heard(|told| match told {
        Told::Released(released) => Some(released.call_id),
        _ => None,
    });
    assert_eq!(released.await, call, "{about}");
    let event = timeout(SEEN, watch.message()).await.expect(about);
    event.expect(about).expect(about);
}

#[tokio::test]
async fn a_connection_is_told_to_go_and_closed_when_its_certificate_ends() {
    for end in [End::Expired, End::AuthorityRemoved] {
        let site = Site::start().await;
        let made = boottime();
        let (shown, _) = site.credential(Credential::Certificate, end);
        let sessions = [site.locked.broker.addr(), site.locked.broker.admin()].map(async |addr| {
            let config = client_config(&site.locked.tls.authority, Some(&shown));
            let mut session = handshake(addr, config).await.expect("a good certificate");
            let begin = [PREFACE, &SETTINGS].concat();
            session.write_all(&begin).await.expect("it is read");
            session.flush().await.expect("it is read");
            session
        });
        let [api, admin] = sessions;
        let (api, admin) = tokio::join!(api, admin);
        site.end(Credential::Certificate, end);
        let ended = match end {
            End::Expired => made + LIFE,
            _ => boottime(),
        };
        for (told, closed) in [told_to_go(api).await, told_to_go(admin).await] {
            figures(&format!(
                "outlive: connection of a certificate that ends ({end:?}): told after {} ms, closed after {} ms",
                told.saturating_sub(ended).as_millis(),
                closed.saturating_sub(ended).as_millis()
            ));
            assert!(told < closed, "told first");
            assert!(told + SECOND >= ended, "too soon");
            assert!(closed <= ended + CLOSED + SECOND, "{:?}", closed - ended);
        }
    }
}

/// When a connection is told to begin nothing new, and when it is closed.
async fn told_to_go(mut session: TlsStream<TcpStream>) -> (Duration, Duration) {
    let (mut told, mut head) = (None, [0; FRAME_HEAD]);
    let read = async {
        while session.read_exact(&mut head).await.is_ok() {
            if head[3] == GO_AWAY {
                told.get_or_insert_with(boottime);
            }
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            let mut payload = vec![0; length];
            session
                .read_exact(&mut payload)
                .await
                .expect("a whole frame");
        }
    };
    timeout(LIFE * 2, read).await.expect("it is closed");
    (told.expect("told before it is closed"), boottime())
}

#[tokio::test]
async fn a_session_with_a_client_certificate_cannot_be_resumed() {
    use tokio_rustls::rustls::HandshakeKind;
    let site = Site::start().await;
    let shown = site.lasting.client(CARRIER);
    let config = client_config(&site.locked.tls.authority, Some(&shown));
    for _ in 0..3 {
        let session = handshake(site.locked.broker.addr(), config.clone()).await;
        let mut session = session.expect("a good certificate");
        let kind = session.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
        let begin = [PREFACE, &SETTINGS].concat();
        session.write_all(&begin).await.expect("it is read");
        // Tickets would come before.
        session.read_u8().await.expect("the broker's settings");
    }
}

fn policy(names: &[&str]) -> String {
    let rule = |name: &&str| {
        format!(
            "[[rule]]\ncallers = [\"token:{name}\", \"jwt:{name}\", \"spiffe://leasehold.test/{name}\"]\n\
             verbs = [\"acquire\", \"observe\", \"list\"]\n"
        )
    };
    names.iter().map(rule).collect()
}
