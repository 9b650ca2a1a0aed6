//! Nothing outlives the credential that admitted it: each kind of credential, each way in which it
//! can end, and each long-running use of the API.

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
    access::{
        files_and_callers::{BearerTokenInterceptor, Issuer, TOKEN_LEEWAY},
        mutual_tls_fixture::{MutualTlsFixture, WORKER, client_tls_config},
    },
    broker::tls::handshake,
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client, HeldLease},
    },
    clock::boottime,
    net::certificates::{Authority, SignedCertificate, client_config},
    scale::print_figures,
    status::error_reason,
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
/// Lifetime of a credential that expires.
const LIFE: Duration = Duration::from_secs(10);
/// Upper bound of the time until a change of a file takes effect. Files are checked every second.
const RELOADED_WITHIN: Duration = Duration::from_secs(3);
/// Time within which a connection is closed after its certificate has ended.
const CLOSED: Duration = Duration::from_secs(5);
/// Resolution of times in certificates and tokens.
const SECOND: Duration = Duration::from_secs(1);
const TOKEN: &str = "the worker's token, 5d1e";
const OTHER: &str = "the bystander's token, 81ac";
/// Name in the certificate of callers with tokens, which also have to present a certificate.
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
    /// The credential is removed from the file that lists it.
    Removed,
    /// The rules no longer contain the caller.
    RuleWithdrawn,
    Expired,
    /// The authority of the credential is no longer accepted, but others are.
    AuthorityRemoved,
}

/// All combinations except impossible ones: a static token neither expires nor has an authority,
/// and no file lists certificates.
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

/// All long-running uses of the API by one caller.
struct Uses {
    unary: JoinHandle<Result<AcquireResponse, Status>>,
    stream_wait: (StreamClient, i64),
    lease: (StreamClient, String),
    watch: Streaming<WatchLocksResponse>,
    session: TlsStream<TcpStream>,
}

struct Fixture {
    locked: MutualTlsFixture,
    /// Authority of clients whose certificates stay valid.
    lasting: Authority,
    held: HeldLease,
}

impl Fixture {
    async fn start() -> Self {
        let locked = MutualTlsFixture::start(&[TOKEN]).await;
        let lasting = Authority::new("clients, for good");
        let known = locked.tls.client_authority.as_ref().expect("mutual").pem();
        locked.tls.write("clients.pem", &(known + &lasting.pem()));
        locked
            .access_files
            .set_tokens(&[(WORKER, TOKEN), ("bystander", OTHER)]);
        locked
            .access_files
            .set_policy(&policy(&["worker", "bystander"]));
        let held = AcquireCall::new(CONTENDED, WAIT / 2, Duration::ZERO);
        let held = locked.observer.acquire_at(0, &held).await;
        let fixture = Self {
            locked,
            lasting,
            held: held.expect("it is free"),
        };
        until("the bystander's token counts", async || {
            let mut looks = fixture
                .inspection_client(&fixture.lasting.client(CARRIER), Some(OTHER))
                .await;
            looks.watch_locks(WatchLocksRequest::default()).await.ok()
        })
        .await;
        fixture
    }

    async fn connection(&self, identity: &SignedCertificate) -> Channel {
        let tls = client_tls_config(&[&self.locked.tls.authority], identity);
        let endpoint = Endpoint::from_shared(self.locked.url()).expect("a URL");
        let endpoint = endpoint.tls_config(tls).expect("good certificates");
        endpoint.connect().await.expect("a good certificate")
    }

    async fn inspection_client(
        &self,
        identity: &SignedCertificate,
        token: Option<&str>,
    ) -> InspectionServiceClient<
        tonic::service::interceptor::InterceptedService<Channel, BearerTokenInterceptor>,
    > {
        let shows = BearerTokenInterceptor(token.map(str::to_owned));
        InspectionServiceClient::with_interceptor(self.connection(identity).await, shows)
    }

    /// Returns the worker's credential: a certificate and optionally a token.
    fn credential(&self, credential: Credential, end: End) -> (SignedCertificate, Option<String>) {
        let clients = self.locked.tls.client_authority.as_ref().expect("mutual");
        match (credential, end) {
            (Credential::Static, _) => (self.lasting.client(CARRIER), Some(TOKEN.to_owned())),
            (Credential::Signed, _) => {
                let seconds = |time: Duration| i64::try_from(time.as_secs()).expect("short");
                let good_for = match end {
                    End::Expired => seconds(LIFE) - seconds(TOKEN_LEEWAY),
                    _ => 600,
                };
                let issuer = &self.locked.access_files.issuer;
                let token = issuer.token(WORKER, good_for, json!({}));
                (self.lasting.client(CARRIER), Some(token))
            }
            (Credential::Certificate, End::Expired) => {
                (clients.client_valid_for(WORKER, LIFE), None)
            }
            (Credential::Certificate, _) => (clients.client(WORKER), None),
        }
    }

    async fn begin(&self, identity: &SignedCertificate, token: Option<&str>, who: &str) -> Uses {
        let shows = || BearerTokenInterceptor(token.map(str::to_owned));
        let wait = || AcquireCall::new(CONTENDED, TTL, WAIT);
        let before = self.queue().await;

        let mut stream =
            StreamClient::open_with_interceptor(self.connection(identity).await, shows()).await;
        let own = AcquireCall::new(&format!("held by {who}"), TTL, Duration::ZERO);
        let call = stream.acquire(&own, 1).await;
        let lease_id = stream.expect_granted(call).await.lease_id;
        stream.start_heartbeats(TTL / 8);
        let lease = (stream, lease_id);

        let mut stream =
            StreamClient::open_with_interceptor(self.connection(identity).await, shows()).await;
        let call = stream.acquire(&wait(), 1).await;
        stream.next_queue_position(call).await;
        stream.start_heartbeats(TTL / 8);
        let stream_wait = (stream, call);

        let locks = LockServiceClient::with_interceptor(self.connection(identity).await, shows());
        let request = Client::new(who, &[], 0).acquire_request(&wait());
        let unary = tokio::spawn(async move {
            let answered = locks.clone().acquire(request).await;
            answered.map(tonic::Response::into_inner)
        });
        until("both wait", async || {
            (self.queue().await == before + 2).then_some(())
        })
        .await;

        let mut looks = self.inspection_client(identity, token).await;
        let watch = looks.watch_locks(WatchLocksRequest::default()).await;
        let config = client_config(&self.locked.tls.authority, Some(identity));
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
        let access_files = &self.locked.access_files;
        match (credential, end) {
            (_, End::Expired) => {}
            (_, End::RuleWithdrawn) => access_files.set_policy(&policy(&["bystander"])),
            (Credential::Static, _) => access_files.set_tokens(&[("bystander", OTHER)]),
            (Credential::Signed, End::Removed) => access_files.set_keys(&[]),
            (Credential::Signed, End::AuthorityRemoved) => {
                access_files.set_keys(&[&Issuer::new("key-2")])
            }
            (Credential::Certificate, _) => {
                self.locked.tls.write("clients.pem", &self.lasting.pem());
            }
        }
    }

    async fn queue(&self) -> i32 {
        let lock = self.locked.observer.get_lock(CONTENDED).await;
        lock.expect("GetLock works")
            .expect("it is held")
            .queue_length
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_use_outlives_the_credential_that_admitted_it() {
    let mut cells = 0;
    for (credential, end) in MATRIX {
        let about = format!("{credential:?} {end:?}");
        let fixture = Fixture::start().await;
        let control_client = fixture
            .begin(&fixture.lasting.client(CARRIER), Some(OTHER), "bystander")
            .await;
        let made = boottime();
        let (identity, token) = fixture.credential(credential, end);
        let worker = fixture.begin(&identity, token.as_deref(), WORKER).await;
        fixture.end(credential, end);
        let ended = match end {
            End::Expired => made + LIFE,
            _ => boottime(),
        };
        let reason = match end {
            End::RuleWithdrawn => ErrorReason::PermissionDenied,
            _ => ErrorReason::Unauthenticated,
        };
        let last = ended + RELOADED_WITHIN;
        cells += assert_all_ended(worker, reason, last, &about).await;
        assert!(boottime() + SECOND >= ended, "{about}: too soon");
        cells += session_is_over(credential, end, (&fixture, &identity), ended).await;

        // Only the queue positions of the worker are removed.
        until("the worker has left the queue", async || {
            (fixture.queue().await == 2).then_some(())
        })
        .await;
        assert_unaffected(fixture, control_client, &about).await;
    }
    print_figures(&format!(
        "outlive: {} credentials and ends, {cells} uses, leaks=0",
        MATRIX.len()
    ));
}

/// Asserts that all uses end by `last` with this reason. Returns the number of uses.
async fn assert_all_ended(worker: Uses, reason: ErrorReason, last: Duration, about: &str) -> usize {
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
        assert_eq!(error_reason(&refused), Some(reason), "{about}: {refused:?}");
    };
    let stream_wait = async {
        if reason == ErrorReason::PermissionDenied {
            let refused = timeout(in_time(), waits.expect_refused(call))
                .await
                .expect(about);
            assert_eq!(refused.reason(), reason, "{about}: {refused:?}");
        } else {
            timeout(in_time(), waits.read_to_end()).await.expect(about);
        }
    };
    let lease = async {
        let ended = holds.wait_for(|message| match message {
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
                Err(status) => {
                    break assert_eq!(error_reason(&status), Some(reason), "{about}: {status:?}");
                }
            }
        }
    };
    tokio::join!(unary, stream_wait, lease, watch);
    4
}

/// Asserts that the ended certificate opens no new connection. Returns the number of uses.
async fn session_is_over(
    credential: Credential,
    end: End,
    (fixture, identity): (&Fixture, &SignedCertificate),
    ended: Duration,
) -> usize {
    if credential != Credential::Certificate || end == End::RuleWithdrawn {
        return 0;
    }
    let config = client_config(&fixture.locked.tls.authority, Some(identity));
    // With TLS 1.3, the client receives the rejection with the first read.
    let again = handshake(fixture.locked.broker.addr(), config).await;
    if let Ok(mut again) = again {
        let read = again.read_u8().await;
        read.expect_err("no other connection is made with it");
    }
    assert!(boottime() <= ended + RELOADED_WITHIN + CLOSED);
    1
}

/// Asserts that the control client keeps its leases and streams, and is granted the locks for which
/// it waits.
async fn assert_unaffected(fixture: Fixture, control_client: Uses, about: &str) {
    let Uses {
        unary,
        stream_wait: (mut waits, call),
        lease: (mut holds, lease_id),
        mut watch,
        session: _session,
    } = control_client;
    holds.wait_until_read().await;
    let release = fixture.locked.observer.release_at(0, &fixture.held).await;
    release.expect("the holder");
    let first = waits.expect_granted(call).await;
    waits.release(&first.lease_id).await;
    let second = timeout(RELOADED_WITHIN, unary).await.expect(about);
    second.expect("no panic").expect(about);
    let call = holds.release(&lease_id).await;
    let released = holds.wait_for(|message| match message {
        Told::Released(released) => Some(released.call_id),
        _ => None,
    });
    assert_eq!(released.await, call, "{about}");
    let event = timeout(RELOADED_WITHIN, watch.message())
        .await
        .expect(about);
    event.expect(about).expect(about);
}

#[tokio::test]
async fn a_connection_receives_goaway_and_is_closed_when_its_certificate_ends() {
    for end in [End::Expired, End::AuthorityRemoved] {
        let fixture = Fixture::start().await;
        let made = boottime();
        let (identity, _) = fixture.credential(Credential::Certificate, end);
        let sessions =
            [fixture.locked.broker.addr(), fixture.locked.broker.admin()].map(async |addr| {
                let config = client_config(&fixture.locked.tls.authority, Some(&identity));
                let mut session = handshake(addr, config).await.expect("a good certificate");
                let begin = [PREFACE, &SETTINGS].concat();
                session.write_all(&begin).await.expect("it is read");
                session.flush().await.expect("it is read");
                session
            });
        let [api, admin] = sessions;
        let (api, admin) = tokio::join!(api, admin);
        fixture.end(Credential::Certificate, end);
        let ended = match end {
            End::Expired => made + LIFE,
            _ => boottime(),
        };
        for (goaway_at, closed) in [goaway_and_close(api).await, goaway_and_close(admin).await] {
            print_figures(&format!(
                "outlive: connection of a certificate that ends ({end:?}): notified after {} ms, closed after {} ms",
                goaway_at.saturating_sub(ended).as_millis(),
                closed.saturating_sub(ended).as_millis()
            ));
            assert!(goaway_at < closed, "notified first");
            assert!(goaway_at + SECOND >= ended, "too soon");
            assert!(closed <= ended + CLOSED + SECOND, "{:?}", closed - ended);
        }
    }
}

/// Returns the times at which a connection receives GOAWAY, and at which it is closed.
async fn goaway_and_close(mut session: TlsStream<TcpStream>) -> (Duration, Duration) {
    let (mut goaway_at, mut head) = (None, [0; FRAME_HEAD]);
    let read = async {
        while session.read_exact(&mut head).await.is_ok() {
            if head[3] == GO_AWAY {
                goaway_at.get_or_insert_with(boottime);
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
    (goaway_at.expect("notified before it is closed"), boottime())
}

#[tokio::test]
async fn a_session_with_a_client_certificate_cannot_be_resumed() {
    use tokio_rustls::rustls::HandshakeKind;
    let fixture = Fixture::start().await;
    let identity = fixture.lasting.client(CARRIER);
    let config = client_config(&fixture.locked.tls.authority, Some(&identity));
    for _ in 0..3 {
        let session = handshake(fixture.locked.broker.addr(), config.clone()).await;
        let mut session = session.expect("a good certificate");
        let kind = session.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
        let begin = [PREFACE, &SETTINGS].concat();
        session.write_all(&begin).await.expect("it is read");
        // Session tickets would arrive before the SETTINGS frame.
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
