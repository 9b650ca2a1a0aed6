//! Layout of every page in a real browser: on a desktop and on a phone, in light and dark mode.

use leasehold_tests::console::{
    browser::Browser,
    fixture::{ConsoleFixture, LONG_NAME, WAIT_UNTIL_LIVE},
};
use serde_json::{Value, json};

const PATHS: [&str; 7] = [
    "/",
    "/locks",
    "/locks?sort=line",
    "/lock?name=invoices",
    "/owner?id=worker-1",
    "/audit",
    "/lock?name=nobody",
];

#[tokio::test]
async fn pages_fit_phones_and_have_no_errors() {
    let fixture = ConsoleFixture::start().await;
    let mut browser = Browser::start().await;
    for (width, scheme) in [
        (1280, "light"),
        (360, "light"),
        (360, "dark"),
        (1280, "dark"),
    ] {
        let options = json!({
            "viewport": { "width": width, "height": 780 },
            "colorScheme": scheme,
            "isMobile": width < 500,
        });
        browser.open(fixture.console_addr(), &options).await;
        let form = format!("/lock?name=invoices&lease={}", fixture.queued_lease_id);
        let long = format!("/lock?name={LONG_NAME}");
        for path in PATHS.iter().copied().chain([form.as_str(), &long]) {
            let about = format!("{path} {width} {scheme}");
            browser
                .run(&format!("await page.goto({})", Value::from(path)))
                .await;
            browser.run(WAIT_UNTIL_LIVE).await;
            // A phone scales down a page that does not fit, so the width is compared with that of
            // the screen.
            let wide = browser
                .run("return await page.evaluate(() => document.documentElement.scrollWidth)")
                .await;
            let wide = wide.as_i64().expect("a number");
            assert!(wide <= width, "{about}: {wide} px wide");
            let dim = browser.run(CONTRAST).await;
            assert_eq!(dim, json!([]), "{about}: hard to read");
            let unnamed = browser.run(UNNAMED).await;
            assert_eq!(unnamed, json!([]), "{about}: without a name");
        }
        let dark = browser.run("return await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor)").await;
        let parts: Vec<u32> = dark.as_str().expect("a colour")[4..]
            .trim_end_matches(')')
            .split(", ")
            .map(|n| n.parse().expect("a number"))
            .collect();
        assert_eq!(parts.iter().sum::<u32>() < 200, scheme == "dark", "{dark}");
        assert_eq!(
            browser.problems().await,
            Vec::<String>::new(),
            "{width} {scheme}"
        );
    }
}

/// Script that returns texts with too little contrast to their background (WCAG 2.2 AA: 4.5 to 1).
const CONTRAST: &str = "return await page.evaluate(() => {
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (c) => {
        const [r, g, b] = c.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const c = rgb(getComputedStyle(at).backgroundColor);
            if (c.length < 4 || c[3] === 1) return c;
        }
        return [255, 255, 255];
    };
    const dim = new Set();
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const of = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || !of.checkVisibility()) continue;
        const [a, b] = [rgb(getComputedStyle(of).color).slice(0, 3), behind(of).slice(0, 3)].map(light);
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) dim.add(`${walk.currentNode.data.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
    }
    return [...dim];
})";

/// Script that returns fields, buttons and links without an accessible name, tables without
/// headers, and repeated ids.
const UNNAMED: &str = "return await page.evaluate(() => {
    const named = (e) => e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label') || e.type === 'hidden';
    const bare = [...document.querySelectorAll('input, select, button, a')].filter((e) => !named(e));
    const headless = [...document.querySelectorAll('table')].filter((t) => !t.querySelector('th[scope=col]'));
    const double = [...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, i, all) => all.indexOf(id) !== i);
    return [...bare, ...headless].map((e) => e.outerHTML.slice(0, 80)).concat(double);
})";
