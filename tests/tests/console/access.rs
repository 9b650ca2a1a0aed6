//! Authorization on the operator console: visible data for each user, and force release.

use std::time::Duration;

use leasehold_proto::v1::{AcquireRequest, AcquireResponse, ErrorReason, Lease};
use leasehold_tests::{
    access::fixture::{AccessControlFixture, acquire_request, send_acquire, send_renew},
    console::client::{ConsoleUser, HttpResponse, path_with_query},
    status::error_reason,
    telemetry::scrape::scrape_at,
    until::until,
};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::{Response, Status};

const LONG: Duration = Duration::from_secs(60);
const FORCE: &str = "/lock/force-release";
const REVOKE_REASON: &str = "the host is being replaced";
/// Rules in which alice acquires, lena lists locks, olga also observes holders, dora is an
/// operator, and ines may operate on one lock only.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:alice"]
    verbs = ["acquire"]
    [[rule]]
    callers = ["token:lena"]
    verbs = ["list"]
    [[rule]]
    callers = ["token:olga", "jwt:olga"]
    verbs = ["list", "observe"]
    [[rule]]
    callers = ["token:dora", "token:dina"]
    verbs = ["list", "observe", "force_release"]
    [[rule]]
    callers = ["token:ines"]
    verbs = ["list", "observe", "force_release"]
    names = ["hers"]
"#;
const NAMES: [&str; 6] = ["alice", "lena", "olga", "dora", "dina", "ines"];

struct Fixture {
    guarded: AccessControlFixture,
    lease: Lease,
    _waiting: JoinSet<Result<Response<AcquireResponse>, Status>>,
}

impl Fixture {
    /// Starts the fixture. alice holds `a`, with a confidential reason, and another call waits for
    /// `a`.
    async fn start() -> Self {
        let tokens = NAMES.map(|name| (name, name));
        let guarded = AccessControlFixture::start(RULES, &tokens).await;
        let alice = guarded.caller("alice");
        let lease = send_acquire(&alice, acquire_request("a", LONG))
            .await
            .expect("it is free");
        let waits = AcquireRequest {
            wait_timeout: LONG.try_into().ok(),
            ..acquire_request("a", LONG)
        };
        let mut locks = alice.locks.clone();
        let mut waiting = JoinSet::new();
        waiting.spawn(async move { locks.acquire(waits).await });
        let fixture = Self {
            guarded,
            lease,
            _waiting: waiting,
        };
        let dora = fixture.user("dora");
        until("a caller waits", async || {
            let page = dora.get("/lock?name=a").await;
            page.body.contains("data-of=\"Position\"").then_some(())
        })
        .await;
        fixture
    }

    fn user(&self, token: &str) -> ConsoleUser {
        ConsoleUser::with_token(self.guarded.broker.admin(), token)
    }

    fn form_path(&self) -> String {
        path_with_query("/lock", &[("name", "a"), ("lease", &self.lease.lease_id)])
    }

    /// Returns the CSRF token of the form that this user receives.
    async fn mark(&self, user: &ConsoleUser) -> String {
        let page = user.get(&self.form_path()).await;
        page.hidden_field("mark")
            .unwrap_or_else(|| panic!("{}", page.body))
    }

    async fn is_held(&self) -> bool {
        let alice = self.guarded.caller("alice");
        send_renew(&alice, &self.lease).await.is_ok()
    }

    fn fields<'a>(&'a self, mark: &'a str) -> [(&'a str, &'a str); 6] {
        [
            ("namespace", "default"),
            ("name", "a"),
            ("lease_id", &self.lease.lease_id),
            ("mark", mark),
            ("reason", REVOKE_REASON),
            ("grace", "0"),
        ]
    }
}

fn shows_user(page: &HttpResponse) -> bool {
    page.body.contains("secret business") || page.body.contains(">worker<")
}

#[tokio::test]
async fn the_console_requires_a_credential() {
    let fixture = Fixture::start().await;
    let admin = fixture.guarded.broker.admin();
    for user in [
        ConsoleUser::new(admin),
        ConsoleUser::with_token(admin, "nobody's"),
        ConsoleUser::new(admin).with_header("authorization", "Basic !"),
        ConsoleUser::new(admin).with_header("authorization", "Basic YWxpY2U="),
        ConsoleUser::new(admin).with_header("authorization", "dora"),
    ] {
        for page in ["/", "/locks", "/lock?name=a", "/live?view=overview"] {
            let reply = user.get(page).await;
            let is_refused = reply.status == 401 || reply.status == 429;
            assert!(is_refused, "{page}: {} {}", reply.status, reply.body);
            let asks = reply.header("www-authenticate").starts_with("Basic ");
            assert_eq!(asks, reply.status == 401, "{page}");
            assert!(!shows_user(&reply) && !reply.body.contains("default/a"));
        }
    }
    let posted = ConsoleUser::new(admin)
        .post(FORCE, &fixture.fields("x"))
        .await;
    assert!([401, 429].contains(&posted.status), "{}", posted.body);
    assert!(fixture.is_held().await);
}

#[tokio::test]
async fn tokens_are_accepted_as_basic_and_bearer_credentials() {
    let fixture = Fixture::start().await;
    let admin = fixture.guarded.broker.admin();
    let signed = fixture
        .guarded
        .access_files
        .issuer
        .token("olga", 600, json!({}));
    for (credential, name) in [
        ("Bearer olga".to_owned(), "token:olga"),
        (format!("Bearer {signed}"), "jwt:olga"),
    ] {
        let user = ConsoleUser::new(admin).with_header("authorization", &credential);
        let page = user.get("/locks").await;
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(page.body.contains(name), "{}", page.body);
    }
    let basic = ConsoleUser::with_token(admin, &signed).get("/locks").await;
    assert!(basic.body.contains("jwt:olga"), "{}", basic.body);
    // If callers authenticate, the page is available under any host name.
    let named = fixture
        .user("olga")
        .with_header("host", "brokers.example.org");
    let page = named.get("/locks").await;
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(!page.body.contains(&signed), "no page repeats a credential");
}

#[tokio::test]
async fn each_visitor_sees_what_the_rules_allow() {
    let fixture = Fixture::start().await;
    let [alice, lena, olga, dora, ines] =
        ["alice", "lena", "olga", "dora", "ines"].map(|name| fixture.user(name));
    // Status codes of the pages that need `list`, and of the page of one lock, which needs
    // `observe`.
    for (who, user, lists, observes) in [
        ("alice", &alice, 403, 403),
        ("lena", &lena, 200, 403),
        ("olga", &olga, 200, 200),
        ("dora", &dora, 200, 200),
        ("ines", &ines, 200, 403),
    ] {
        for page in ["/", "/locks", "/locks?sort=line", "/owner?id=worker"] {
            let reply = user.get(page).await;
            assert_eq!(reply.status, lists, "{who} {page}: {}", reply.body);
        }
        for (view, may) in [
            ("overview", lists),
            ("search", lists),
            ("lock&name=a", observes),
        ] {
            let opened = user.subscribe(&format!("/live?view={view}")).await;
            let status = opened.map_or_else(|refused| refused.status, |_| 200);
            assert_eq!(status, may, "{who} {view}");
        }
        let lock = user.get("/lock?name=a").await;
        assert_eq!(lock.status, observes, "{who}: {}", lock.body);
        assert_eq!(shows_user(&lock), observes == 200, "{who}: {}", lock.body);
    }
    for (who, user, shows, tells) in [
        ("lena", &lena, true, false),
        ("olga", &olga, true, true),
        ("ines", &ines, false, false),
    ] {
        let list = user.get("/locks").await;
        assert_eq!(
            list.body.contains("default/a"),
            shows,
            "{who}: {}",
            list.body
        );
        assert_eq!(shows_user(&list), tells, "{who}: {}", list.body);
        let overview = until("it is counted", async || {
            let page = user.get("/").await;
            let counted = page
                .body
                .contains(&format!("id=\"waiting\">{}<", u8::from(shows)));
            counted.then_some(page)
        })
        .await;
        assert_eq!(overview.body.contains("default/a"), shows, "{who}");
        assert!(!shows_user(&overview), "{who}: {}", overview.body);
        // A user without `observe` cannot find a lock by its owner either.
        for by_owner in ["/owner?id=worker", "/locks?owner=worker"] {
            let page = user.get(by_owner).await;
            let is_found = page.body.contains("default/a");
            assert_eq!(is_found, tells, "{who} {by_owner}: {}", page.body);
        }
    }
    let waits = lena.get("/").await;
    assert!(
        waits.body.contains("not shown to you"),
        "since when: {}",
        waits.body
    );
}

#[tokio::test]
async fn only_operators_receive_the_form() {
    let fixture = Fixture::start().await;
    for (who, may) in [("dora", true), ("olga", false)] {
        let page = fixture.user(who).get(&fixture.form_path()).await;
        assert_eq!(page.status, 200);
        assert_eq!(page.body.contains("Revoke…"), may, "{who}");
        assert_eq!(
            page.body.contains("action=\"/lock/force-release\""),
            may,
            "{who}"
        );
        assert_eq!(page.hidden_field("mark").is_some(), may, "{who}");
    }
    let without = fixture.user("dora").get("/lock?name=a").await;
    assert!(
        without.hidden_field("mark").is_none(),
        "a form is for one lease"
    );
    assert_eq!(without.header("referrer-policy"), "no-referrer");
}

#[tokio::test]
async fn a_foreign_form_has_no_effect() {
    let fixture = Fixture::start().await;
    let (dora, dina, olga) = (
        fixture.user("dora"),
        fixture.user("dina"),
        fixture.user("olga"),
    );
    let mark = fixture.mark(&dora).await;
    let good = fixture.fields(&mark);
    let with = |name: &'static str, value: &'static str| {
        let mut fields = good;
        let field = fields.iter_mut().find(|(known, _)| *known == name);
        field.expect("a field").1 = value;
        fields
    };
    let refused = async |status: u16, what: &str, reply: HttpResponse| {
        assert_eq!(reply.status, status, "{what}: {}", reply.body);
        assert!(fixture.is_held().await, "{what}");
    };
    refused(403, "no mark", dora.post(FORCE, &with("mark", "")).await).await;
    refused(
        403,
        "a wrong mark",
        dora.post(FORCE, &with("mark", "1.x")).await,
    )
    .await;
    refused(403, "another's mark", dina.post(FORCE, &good).await).await;
    refused(
        403,
        "another lock",
        dora.post(FORCE, &with("name", "b")).await,
    )
    .await;
    let other = with("lease_id", "aaaaaaaaaaaaaaaaaaaaaaaaaa");
    refused(403, "another lease", dora.post(FORCE, &other).await).await;
    refused(403, "from nowhere", dora.post_raw(FORCE, &good).await).await;
    for site_of_it in ["cross-site", "same-site", "none"] {
        let from = dora.clone().with_header("sec-fetch-site", site_of_it);
        refused(403, site_of_it, from.post_raw(FORCE, &good).await).await;
    }
    for origin in ["null", "https://evil.test", "http://127.0.0.1"] {
        let from = dora.clone().with_header("origin", origin);
        refused(403, origin, from.post_raw(FORCE, &good).await).await;
    }
    // If a browser sends both headers, `sec-fetch-site` takes precedence over `origin`.
    let both = dora.clone().with_header("origin", "https://evil.test");
    let both = both.with_header("sec-fetch-site", "cross-site");
    refused(403, "both", both.post_raw(FORCE, &good).await).await;
    refused(405, "GET", dora.get(&path_with_query(FORCE, &good)).await).await;
    for (what, field, value) in [
        ("no reason", "reason", " "),
        ("a wrong grace", "grace", "-1"),
        ("a long grace", "grace", "3601"),
    ] {
        refused(400, what, dora.post(FORCE, &with(field, value)).await).await;
    }
    refused(400, "half a form", dora.post(FORCE, &good[..4]).await).await;
    // Only users who receive the form receive a CSRF token. The permission is checked nevertheless.
    let olgas = ConsoleUser::clone(&olga).post(FORCE, &good).await;
    refused(403, "without the right", olgas).await;
    let long = "x".repeat(40_000);
    let mut large = good;
    large[4].1 = &long;
    refused(400, "too large", dora.post(FORCE, &large).await).await;
}

#[tokio::test]
async fn a_withdrawn_permission_takes_effect_at_once() {
    let fixture = Fixture::start().await;
    let dora = fixture.user("dora");
    let mark = fixture.mark(&dora).await;
    fixture
        .guarded
        .access_files
        .set_policy(&RULES.replace("\"token:dora\", ", ""));
    until("the rules are in force", async || {
        let reply = dora.get("/lock?name=a").await;
        (reply.status == 403).then_some(())
    })
    .await;
    let reply = dora.post(FORCE, &fixture.fields(&mark)).await;
    assert_eq!(reply.status, 403, "{}", reply.body);
    assert!(
        reply.body.contains("does not allow you to force_release"),
        "{}",
        reply.body
    );
    assert!(fixture.is_held().await);
}

#[tokio::test]
async fn the_form_takes_the_lease_away_and_the_log_says_who_did() {
    let fixture = Fixture::start().await;
    let dora = fixture.user("dora");
    let page = dora.get(&fixture.form_path()).await;
    assert_eq!(page.header("referrer-policy"), "same-origin");
    let mark = page.hidden_field("mark").expect("a form");
    let fields = fixture.fields(&mark);
    let origin = format!("http://{}", fixture.guarded.broker.admin());
    let old_browser = dora.clone().with_header("origin", &origin);
    let done = old_browser.post_raw(FORCE, &fields).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let back = dora.get(done.header("location")).await;
    assert!(back.body.contains("The lease is revoked."), "{}", back.body);
    let alice = fixture.guarded.caller("alice");
    let refused = send_renew(&alice, &fixture.lease)
        .await
        .expect_err("revoked");
    assert_eq!(error_reason(&refused), Some(ErrorReason::LeaseRevoked));
    assert!(
        refused.message().contains(REVOKE_REASON),
        "{}",
        refused.message()
    );
    let line = until("the line of the log", async || {
        let log = fixture.guarded.broker.log();
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains("an operator has revoked a lease"));
        line.map(str::to_owned)
    })
    .await;
    for opened in [
        "audit",
        "default/a",
        &fixture.lease.lease_id,
        "worker",
        REVOKE_REASON,
        "token:dora",
        "127.",
    ] {
        assert!(line.contains(opened), "{opened}: {line}");
    }
}

#[tokio::test]
async fn with_a_grace_the_holder_is_asked_first() {
    let fixture = Fixture::start().await;
    let dora = fixture.user("dora");
    let mark = fixture.mark(&dora).await;
    let mut fields = fixture.fields(&mark);
    fields[5].1 = "30";
    let done = dora.post(FORCE, &fields).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let back = dora.get(done.header("location")).await;
    assert!(back.body.contains("asked to finish"), "{}", back.body);
    assert!(fixture.is_held().await, "for as long as the grace");
    let log = fixture.guarded.broker.log();
    assert!(log.contains("grace_ms=30000"), "{log}");
}

const LIVE_PAGES_PER_CALLER: usize = 8;

#[tokio::test]
async fn a_caller_has_eight_live_pages() {
    let fixture = Fixture::start().await;
    let (lena, olga) = (fixture.user("lena"), fixture.user("olga"));
    let mut pages = Vec::new();
    for _ in 0..LIVE_PAGES_PER_CALLER {
        let page = lena.subscribe("/live?view=overview").await;
        pages.push(page.expect("there is room"));
    }
    let refused = lena.subscribe("/live?view=audit").await;
    assert_eq!(refused.expect_err("one too many").status, 429);
    let metrics = scrape_at(fixture.guarded.broker.admin(), Some("olga")).await;
    let label = [("quota", "live_pages_per_caller")];
    let counted = metrics.sum("leasehold_quota_refusals_total", &label);
    assert_eq!(counted as usize, 1);
    let other = olga.subscribe("/live?view=overview").await;
    other.expect("a page of another caller");
    pages.pop();
    until("a page has ended", async || {
        lena.subscribe("/live?view=audit").await.ok()
    })
    .await;
}

#[tokio::test]
async fn the_audit_page_is_for_callers_who_may_more_than_acquire() {
    let fixture = Fixture::start().await;
    for path in ["/audit", "/live?view=audit"] {
        for (name, status) in [("alice", 403), ("lena", 200), ("olga", 200), ("dora", 200)] {
            let reply = fixture.user(name).subscribe(path).await;
            let status_shown = reply.map_or_else(|refused| refused.status, |_| 200);
            assert_eq!(status_shown, status, "{name}: {path}");
        }
    }
}
