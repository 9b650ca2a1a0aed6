//! A headless browser, controlled by Playwright code.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::repository::paths::{repository_root, tool_folder, tool_path};

const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A browser with one page, which is closed when it is dropped.
#[derive(Debug)]
pub struct Browser {
    _driver: Child,
    commands: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Browser {
    /// Starts a browser with a blank page.
    pub async fn start() -> Self {
        let mut driver =
            Command::new(tool_path("client-sdk/typescript/setup.sh", "node").join("node"));
        driver.arg(repository_root().join("tests/browser/driver.mjs"));
        driver.args([tool_folder("playwright"), tool_folder("chromium")]);
        driver.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut driver = driver.kill_on_drop(true).spawn().expect("node runs");
        let says = driver.stdin.take().expect("a pipe");
        let answers = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let mut browser = Self {
            _driver: driver,
            commands: says,
            replies: answers,
        };
        assert_eq!(browser.read_line().await, "ready");
        browser
    }

    /// Opens a page in a new context, with this listener as its base URL.
    pub async fn open(&mut self, at: SocketAddr, options: &Value) {
        let mut options = options.clone();
        options["baseURL"] = format!("http://{at}").into();
        self.run(&format!("await open({options})")).await;
    }

    /// Runs JavaScript as the body of a function with the variable `page`, and returns its result.
    pub async fn run(&mut self, body: &str) -> Value {
        let line = format!("{}\n", Value::from(body));
        let sent = self.commands.write_all(line.as_bytes()).await;
        sent.expect("the driver reads");
        let answer: Value = serde_json::from_str(&self.read_line().await).expect("JSON");
        assert!(answer.get("error").is_none(), "{body}: {answer}");
        answer["ok"].clone()
    }

    /// Returns the text of the first element that matches a selector.
    pub async fn text(&mut self, selector: &str) -> String {
        let selector = Value::from(selector);
        let body = format!("return (await page.locator({selector}).first().innerText()).trim()");
        let text = self.run(&body).await;
        text.as_str().expect("a text").to_owned()
    }

    /// Returns the errors, console warnings, policy violations and foreign requests of the page.
    pub async fn problems(&mut self) -> Vec<String> {
        let problems = self.run("return problems").await;
        serde_json::from_value(problems).expect("texts")
    }

    async fn read_line(&mut self) -> String {
        let line = timeout(REPLY_TIMEOUT, self.replies.next_line()).await;
        let line = line.expect("the driver answers in time");
        line.expect("a pipe").expect("the driver lives")
    }
}
