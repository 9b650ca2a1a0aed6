//! Page tokens of the memory store, which must not reveal hidden lock names.

use data_encoding::BASE64URL_NOPAD;
use leasehold_proto::v1::{ListLocksRequest, ListLocksResponse};
use leasehold_tests::{
    access::{
        files_and_callers::AccessFiles,
        matrix::{
            connection::{LIST, RoleConnection},
            roles::{CredentialKind, LockGroup, Permission, Role, policy, root_role},
        },
    },
    broker::process::BrokerProcess,
    client::unary::channel,
    until::until,
};
use prost::Message as _;

/// Number of hidden locks behind the visible one, which exceeds the steps of one page.
const HIDDEN_LOCKS: usize = 200;
const TARGETS_MAX: usize = 16;

fn test_roles() -> Vec<Role> {
    let finds = vec![(LockGroup::Shared, vec![Permission::List])];
    vec![
        root_role(),
        Role::new("finder", CredentialKind::StaticToken, finds),
    ]
}

#[tokio::test]
async fn page_tokens_of_the_memory_store_reveal_no_name() {
    let roles = test_roles();
    let tokens = [("root", "root"), ("finder", "finder")];
    let doors = AccessFiles::new(&policy(&roles), &tokens);
    let mut options = doors.options("memory".to_owned());
    // The state lost at the last start then expires soon.
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
    let line = |token: &str| RoleConnection {
        api: api.clone(),
        admin: api.clone(),
        authorization: Some(format!("Bearer {token}")),
    };
    until("it grants", async || {
        let lock = LockGroup::Open.lock("first");
        line("root").acquire(&[lock]).await.ok()
    })
    .await;
    let shown = LockGroup::Shared.lock("shown");
    line("root").acquire(&[shown]).await.expect("it is free");
    let hidden =
        (0..HIDDEN_LOCKS).map(|number| LockGroup::Vault.lock(&format!("canary-{number:04}")));
    let hidden: Vec<_> = hidden.collect();
    for several in hidden.chunks(TARGETS_MAX) {
        line("root").acquire(several).await.expect("they are free");
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
        let page_bytes = page.encode_to_vec();
        assert!(
            !String::from_utf8_lossy(&page_bytes).contains("canary"),
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
