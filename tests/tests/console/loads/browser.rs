//! The operator console in a real browser: without scripts, with live updates, by keyboard, on a
//! phone, and in dark mode.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    access::fixture::{
        ALLOW_ALL_POLICY, AccessControlFixture, acquire_request, send_acquire, send_renew,
    },
    client::unary::AcquireCall,
    console::{
        browser::Browser,
        fixture::{ConsoleFixture, WAIT_UNTIL_LIVE, immediate_call},
    },
    status::error_reason,
};
use serde_json::{Value, json};

const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn without_scripts_everything_can_be_read() {
    let fixture = ConsoleFixture::start().await;
    let mut browser = Browser::start().await;
    browser
        .open(
            fixture.console_addr(),
            &json!({ "javaScriptEnabled": false }),
        )
        .await;
    browser
        .run("await page.goto('/'); await page.goto('/')")
        .await;
    let numbers = browser.text("#numbers").await;
    for shown in ["Locks held", "Calls waiting", "Oldest wait"] {
        assert!(numbers.contains(shown), "{numbers}");
    }
    browser
        .run("await page.getByRole('link', { name: 'Locks', exact: true }).click()")
        .await;
    browser
        .run("await page.getByLabel('Name begins with', { exact: true }).fill('inv')")
        .await;
    browser
        .run("await page.getByRole('button', { name: 'Search' }).click()")
        .await;
    let found = browser.text("#found tbody").await;
    assert!(
        found.contains("default/invoices") && !found.contains("a-very-long"),
        "{found}"
    );
    browser
        .run("await page.getByRole('link', { name: 'default/invoices' }).click()")
        .await;
    let holders = browser.text("#holders").await;
    assert!(
        holders.contains("worker-1") && holders.contains(&fixture.queued_lease_id),
        "{holders}"
    );
    let line = browser.text("#line tbody").await;
    assert!(line.find("waiter-1") < line.find("waiter-3"), "{line}");
    browser
        .run("await page.getByRole('link', { name: 'Revoke…' }).click()")
        .await;
    browser
        .run("await page.getByLabel('Reason').fill('by hand')")
        .await;
    browser
        .run("await page.getByRole('button', { name: 'Revoke', exact: true }).click()")
        .await;
    assert!(
        browser
            .text("[role=status]")
            .await
            .contains("The lease is revoked.")
    );
}

#[tokio::test]
async fn a_page_follows_what_happens() {
    let fixture = ConsoleFixture::start().await;
    let mut browser = Browser::start().await;
    browser.open(fixture.console_addr(), &json!({})).await;
    browser.run("await page.goto('/lock?name=fresh')").await;
    browser.run(WAIT_UNTIL_LIVE).await;
    assert!(browser.text("#holders").await.contains("None."));
    let reloads = "window.first = true";
    browser
        .run(&format!("await page.evaluate(() => {{ {reloads} }})"))
        .await;
    let held = fixture
        .client
        .acquire_at(0, &immediate_call("fresh"))
        .await
        .expect("it is free");
    let shown = "await page.locator('#holders').getByText('worker-1').waitFor()";
    browser.run(shown).await;
    // The remaining time counts down in the browser, even while every request to the server fails.
    let ticks = "const left = page.locator('#holders time[data-left]');
        const first = await left.textContent();
        await page.route('**/*', (route) => route.abort());
        await page.waitForFunction((first) =>
            document.querySelector('#holders time[data-left]').textContent !== first, first);
        await page.unroute('**/*');";
    browser.run(ticks).await;
    fixture
        .client
        .release_at(0, &held)
        .await
        .expect("it is held");
    browser
        .run("await page.locator('#holders').getByText('None.').waitFor()")
        .await;
    let same = browser
        .run("return await page.evaluate(() => window.first)")
        .await;
    assert_eq!(same, Value::from(true), "it was never loaded again");

    browser.run("await page.goto('/')").await;
    browser.run(WAIT_UNTIL_LIVE).await;
    let before = browser.text("#held").await;
    fixture
        .client
        .acquire_at(0, &immediate_call("fresh"))
        .await
        .expect("it is free");
    let changed = format!(
        "await page.waitForFunction((old) => document.querySelector('#held').textContent !== old, {})",
        Value::from(before.as_str())
    );
    browser.run(&changed).await;
    let [before, after] = [before, browser.text("#held").await].map(|n| n.parse::<u32>());
    assert_eq!(after.expect("a number"), before.expect("a number") + 1);
}

#[tokio::test]
async fn nothing_moves_and_nothing_is_lost_when_a_page_changes() {
    let fixture = ConsoleFixture::start().await;
    let mut browser = Browser::start().await;
    browser.open(fixture.console_addr(), &json!({})).await;
    let form = format!("/lock?name=invoices&lease={}", fixture.queued_lease_id);
    browser
        .run(&format!("await page.goto({})", Value::from(form)))
        .await;
    browser.run(WAIT_UNTIL_LIVE).await;
    browser
        .run("await page.getByLabel('Reason').fill('half a senten')")
        .await;
    let places = browser.run(ELEMENT_POSITIONS).await;
    let more = AcquireCall::new("invoices", TTL, WAIT);
    let _waits = fixture
        .client
        .with_name("waiter-4", 0)
        .start_acquire_at(0, &more);
    browser
        .run("await page.locator('#line').getByText('waiter-4').waitFor()")
        .await;
    let kept = browser
        .run("return await page.getByLabel('Reason').inputValue()")
        .await;
    assert_eq!(kept, Value::from("half a senten"));
    let focus = browser
        .run("return await page.evaluate(() => document.activeElement.id)")
        .await;
    assert_eq!(focus, Value::from("reason"));
    assert_eq!(
        browser.run(ELEMENT_POSITIONS).await,
        places,
        "nothing above the line has moved"
    );

    // The focus stays on a link when the part of the page around the link is replaced.
    let focus = "await page.locator('#line a', { hasText: 'waiter-1' }).focus()";
    browser.run(focus).await;
    let _waits = fixture
        .client
        .with_name("waiter-5", 0)
        .start_acquire_at(0, &AcquireCall::new("invoices", TTL, WAIT));
    browser
        .run("await page.locator('#line').getByText('waiter-5').waitFor()")
        .await;
    let on = browser
        .run("return await page.evaluate(() => document.activeElement.textContent)")
        .await;
    assert_eq!(on, Value::from("waiter-1"));
}

/// Returns a script that presses these keys one after the other.
fn keys(keys: &[&str]) -> String {
    let presses = keys
        .iter()
        .map(|key| format!("await page.keyboard.press({});", Value::from(*key)));
    presses.collect()
}

/// Returns a script that presses Tab until an element with this property has the focus.
fn tab_script(property: &str, value: &str) -> String {
    format!(
        "for (let i = 0; i < 60; i++) {{
            await page.keyboard.press('Tab');
            const at = await page.evaluate(() => document.activeElement.{property}.trim());
            if (at === {}) return i;
        }}
        throw new Error('no way there by keyboard')",
        Value::from(value)
    )
}

#[tokio::test]
async fn a_lease_is_revoked_by_keyboard_alone() {
    let guarded =
        AccessControlFixture::start(ALLOW_ALL_POLICY, &[("dora", "dora"), ("alice", "alice")])
            .await;
    let alice = guarded.caller("alice");
    let lease = send_acquire(&alice, acquire_request("a", TTL))
        .await
        .expect("it is free");
    let mut browser = Browser::start().await;
    let login = json!({ "httpCredentials": { "username": "anything", "password": "dora" } });
    browser.open(guarded.broker.admin(), &login).await;
    browser.run("await page.goto('/')").await;
    assert!(browser.text("footer").await.contains("token:dora"));
    let focused = "return await page.evaluate(() => document.activeElement.textContent.trim())";
    browser.run(&keys(&["Tab"])).await;
    assert_eq!(browser.run(focused).await, "Skip to the content");
    // The element with the focus has a visible outline.
    let outline =
        "return await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle)";
    assert_eq!(browser.run(outline).await, "solid");
    browser.run(&keys(&["/"])).await;
    let on = browser
        .run("return await page.evaluate(() => document.activeElement.id)")
        .await;
    assert_eq!(on, "find");
    browser.run("await page.keyboard.type('a'); await page.keyboard.press('Enter'); await page.waitForURL('**/locks?prefix=a')").await;
    for (text, url) in [("default/a", "**/lock?*"), ("Revoke…", "**/lock?*lease=*")] {
        browser.run(&tab_script("textContent", text)).await;
        browser
            .run(&format!(
                "await page.keyboard.press('Enter'); await page.waitForURL('{url}')"
            ))
            .await;
    }
    browser.run(&tab_script("id", "reason")).await;
    // In a text field the slash is text, not a shortcut.
    browser
        .run("await page.keyboard.type('moved to host/7')")
        .await;
    browser.run(&keys(&["Tab", "Tab", "Enter"])).await;
    browser
        .run("await page.waitForURL('**/lock?*done=*')")
        .await;
    assert!(
        browser
            .text("[role=status]")
            .await
            .contains("The lease is revoked.")
    );
    let refused = send_renew(&alice, &lease).await;
    let refused = refused.expect_err("revoked");
    assert_eq!(error_reason(&refused), Some(ErrorReason::LeaseRevoked));
    assert!(
        refused.message().contains("moved to host/7"),
        "{}",
        refused.message()
    );
    assert_eq!(browser.problems().await, Vec::<String>::new());
}

/// Script that returns the position and size of every element above the queue.
const ELEMENT_POSITIONS: &str = "return await page.evaluate(() => {
    const above = document.querySelectorAll('h1, #what, #holders, #holders td, #take, #take input, #line th');
    return [...above].map((e) => e.getBoundingClientRect().toJSON());
})";
