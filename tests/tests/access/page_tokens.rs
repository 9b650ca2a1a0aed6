//! Page tokens of the embedded store: where a list goes on is nothing that its caller may not know.

use data_encoding::BASE64URL_NOPAD;
use leasehold_proto::v1::{ListLocksRequest, ListLocksResponse};
use leasehold_tests::{
    broker_process::BrokerProcess,
    callers::Doors,
    client::channel,
    matrix::{
        line::{LIST, Line},
        roles::{Part, Role, Shows, Verb, policy, root},
    },
    until::until,
};
use prost::Message as _;

/// More than the steps that one page may take, behind the one that is shown.
const HIDDEN_LOCKS: usize = 200;
const TARGETS_MOST: usize = 16;

fn people() -> Vec<Role> {
    let finds = vec![(Part::Shared, vec![Verb::List])];
    vec![root(), Role::new("finder", Shows::Token, finds)]
}

#[tokio::test]
async fn an_embedded_store_tells_no_name_in_its_page_tokens() {
    let roles = people();
    let tokens = [("root", "root"), ("finder", "finder")];
    let doors = Doors::new(&policy(&roles), &tokens);
    let mut options = doors.options("memory".to_owned());
    // What it has forgotten at its start is over soon then.
    for (key, value) in [
        ("TTL_MAX", "3s"),
        ("TTL_DEFAULT", "3s"),
        ("LOCK_DELAY_MAX", "0s"),
    ] {
        let key = format!("LEASEHOLD__LIMITS__{key}");
        options.env.push((key, value.to_owned()));
    }
    let broker = BrokerProcess::start(&options).await;
    let api = channel(broker.addr());
    let line = |token: &str| Line {
        api: api.clone(),
        admin: api.clone(),
        authorization: Some(format!("Bearer {token}")),
    };
    until("it grants", async || {
        let lock = Part::Open.lock("first");
        line("root").take(&[lock]).await.ok()
    })
    .await;
    let shown = Part::Shared.lock("shown");
    line("root").take(&[shown]).await.expect("it is free");
    let hidden = (0..HIDDEN_LOCKS).map(|number| Part::Vault.lock(&format!("canary-{number:04}")));
    let hidden: Vec<_> = hidden.collect();
    for several in hidden.chunks(TARGETS_MOST) {
        line("root").take(several).await.expect("they are free");
    }
    let mut request = ListLocksRequest {
        page_size: 2,
        ..ListLocksRequest::default()
    };
    let mut pages = Vec::new();
    loop {
        let page: Result<ListLocksResponse, _> = line("finder").call(LIST, &request).await;
        let page = page.expect("it may list");
        pages.push(page.locks.len());
        let told = page.encode_to_vec();
        assert!(
            !String::from_utf8_lossy(&told).contains("canary"),
            "{page:?}"
        );
        for from in 0..page.next_page_token.len().min(16) {
            for to in (from..=page.next_page_token.len()).rev().take(4) {
                let part = &page.next_page_token.as_bytes()[from..to];
                let text = BASE64URL_NOPAD.decode(part).unwrap_or_default();
                let text = String::from_utf8_lossy(&text).into_owned();
                assert!(!text.contains("canary"), "a page token says {text:?}");
            }
        }
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(pages, [1, 0], "the first ends among the hidden");
}
