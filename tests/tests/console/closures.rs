//! Closing and opening a lock on the operator console.

use leasehold_tests::{
    access::fixture::AccessControlFixture,
    console::client::{ConsoleUser, path_with_query},
};

/// Rules in which dora operates and olga observes.
const RULES: &str = r#"
    [[rule]]
    callers = ["token:olga"]
    verbs = ["list", "observe"]
    [[rule]]
    callers = ["token:dora"]
    verbs = ["list", "observe", "admin"]
"#;
const CLOSE: &str = "/lock/close";
const OPEN: &str = "/lock/open";
const REASON: &str = "a freeze <of all>";

async fn start_fixture() -> AccessControlFixture {
    AccessControlFixture::start(RULES, &[("olga", "olga"), ("dora", "dora")]).await
}

fn user(fixture: &AccessControlFixture, name: &str) -> ConsoleUser {
    ConsoleUser::with_token(fixture.broker.admin(), name)
}

fn form_path(form: &str) -> String {
    path_with_query("/lock", &[("name", "a"), ("form", form)])
}

/// Returns the CSRF token of a form.
async fn mark(user: &ConsoleUser, form: &str) -> String {
    let page = user.get(&form_path(form)).await;
    let mark = page.hidden_field("mark");
    mark.unwrap_or_else(|| panic!("{form}: {}", page.body))
}

fn close_fields<'a>(mark: &'a str, duration: &'a str) -> [(&'a str, &'a str); 5] {
    [
        ("namespace", "default"),
        ("name", "a"),
        ("mark", mark),
        ("reason", REASON),
        ("duration", duration),
    ]
}

#[tokio::test]
async fn an_operator_closes_and_opens_a_lock() {
    let fixture = start_fixture().await;
    let (dora, olga) = (user(&fixture, "dora"), user(&fixture, "olga"));
    let free = dora.get("/lock?name=a").await;
    assert!(free.body.contains("Close this lock…"), "{}", free.body);
    let form = mark(&dora, "close").await;
    let done = dora.post(CLOSE, &close_fields(&form, "2h")).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let noticed = dora.get(done.header("location")).await;
    assert!(
        noticed.body.contains("The lock is closed: "),
        "{}",
        noticed.body
    );
    for (who, operates) in [(&dora, true), (&olga, false)] {
        let page = who.get("/lock?name=a").await.body;
        assert!(
            page.contains("<span class=\"chip closed\">closed</span>"),
            "{page}"
        );
        let closed = "Closed by an operator, <bdi>token:dora</bdi>, for another <time";
        assert!(page.contains(closed), "{page}");
        assert!(
            page.contains("Reason: <bdi>a freeze &#60;of all&#62;</bdi>"),
            "{page}"
        );
        assert_eq!(page.contains("Open this lock…"), operates, "{page}");
        let list = who.get("/locks").await.body;
        assert!(list.contains("closed for another <time"), "{list}");
    }
    let audit = dora.get("/audit").await.body;
    assert!(
        audit.contains("token:dora") && audit.contains(">closed<"),
        "{audit}"
    );
    let form = mark(&dora, "open").await;
    let fields = [("namespace", "default"), ("name", "a"), ("mark", &*form)];
    for notice in [
        "The lock is open.",
        "The lock was not closed: nothing was done.",
    ] {
        let done = dora.post(OPEN, &fields).await;
        assert_eq!(done.status, 303, "{}", done.body);
        let noticed = dora.get(done.header("location")).await.body;
        assert!(noticed.contains(notice), "{noticed}");
        assert!(!noticed.contains("Closed by"), "{noticed}");
    }
}

#[tokio::test]
async fn a_form_that_was_not_shown_to_an_operator_closes_nothing() {
    let fixture = start_fixture().await;
    let (dora, olga) = (user(&fixture, "dora"), user(&fixture, "olga"));
    let observer_page = olga.get(&form_path("close")).await;
    assert_eq!(observer_page.hidden_field("mark"), None);
    let form = mark(&dora, "close").await;
    let good = close_fields(&form, "2h");
    for (status, reply) in [
        (403, olga.post(CLOSE, &good).await),
        (403, dora.post_raw(CLOSE, &good).await),
        (403, dora.post(CLOSE, &close_fields("1.x", "2h")).await),
        (403, dora.post(OPEN, &good[..3]).await),
        (400, dora.post(CLOSE, &close_fields(&form, "soon")).await),
        (400, dora.post(CLOSE, &close_fields(&form, "0s")).await),
        (400, dora.post(CLOSE, &close_fields(&form, "32d")).await),
    ] {
        assert_eq!(reply.status, status, "{}", reply.body);
    }
    let page = dora.get("/lock?name=a").await.body;
    assert!(page.contains("Close this lock…"), "{page}");
}
