//! A real browser without a screen, told what to do in the words of Playwright.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::setup::{folder_of, tool, workspace};

const LIMIT: Duration = Duration::from_secs(60);

/// One browser with one page. It ends when this is dropped.
#[derive(Debug)]
pub struct Browser {
    _driver: Child,
    says: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Browser {
    /// Starts one, with a blank page.
    pub async fn start() -> Self {
        let mut driver = Command::new(tool("client-sdk/typescript/setup.sh", "node").join("node"));
        driver.arg(workspace().join("tests/browser/driver.mjs"));
        driver.args([folder_of("playwright"), folder_of("chromium")]);
        driver.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut driver = driver.kill_on_drop(true).spawn().expect("node runs");
        let says = driver.stdin.take().expect("a pipe");
        let answers = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let mut browser = Self {
            _driver: driver,
            says,
            answers,
        };
        assert_eq!(browser.line().await, "ready");
        browser
    }

    /// A new page in a new context, for addresses of this listener.
    pub async fn open(&mut self, at: SocketAddr, options: &Value) {
        let mut options = options.clone();
        options["baseURL"] = format!("http://{at}").into();
        self.run(&format!("await open({options})")).await;
    }

    /// Runs the body of a function of `page`; what it returns.
    pub async fn run(&mut self, body: &str) -> Value {
        let line = format!("{}\n", Value::from(body));
        let sent = self.says.write_all(line.as_bytes()).await;
        sent.expect("the driver reads");
        let answer: Value = serde_json::from_str(&self.line().await).expect("JSON");
        assert!(answer.get("error").is_none(), "{body}: {answer}");
        answer["ok"].clone()
    }

    /// The text of the first element that a selector finds.
    pub async fn text(&mut self, selector: &str) -> String {
        let selector = Value::from(selector);
        let body = format!("return (await page.locator({selector}).first().innerText()).trim()");
        let text = self.run(&body).await;
        text.as_str().expect("a text").to_owned()
    }

    /// What the page has done that none may do.
    pub async fn problems(&mut self) -> Vec<String> {
        let problems = self.run("return problems").await;
        serde_json::from_value(problems).expect("texts")
    }

    async fn line(&mut self) -> String {
        let line = timeout(LIMIT, self.answers.next_line()).await;
        let line = line.expect("the driver answers in time");
        line.expect("a pipe").expect("the driver lives")
    }
}
