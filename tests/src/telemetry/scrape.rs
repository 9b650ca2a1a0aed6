//! Metrics of a broker, read from `/metrics` like Prometheus does.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::broker::process::BrokerProcess;

/// A series and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name, including suffixes such as `_total` and `_bucket`.
    pub name: String,
    /// Values of the labels, by name.
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// All metrics of one response.
#[derive(Debug, Clone)]
pub struct Scrape {
    pub text: String,
    /// Type of each family, by name.
    pub types: BTreeMap<String, String>,
    /// Units of the families that have a unit, by name.
    pub units: BTreeMap<String, String>,
    /// Names of the families with a help text.
    pub families_with_help: BTreeSet<String>,
    pub samples: Vec<Sample>,
}

/// Requests the metrics, optionally with a bearer token. Returns the status, and the response with
/// its headers.
pub async fn request_metrics(
    mut wire: impl AsyncRead + AsyncWrite + Unpin,
    token: Option<&str>,
) -> (u16, String) {
    let authorization = token.map_or_else(String::new, |token| {
        format!("authorization: Bearer {token}\r\n")
    });
    let request = format!(
        "GET /metrics HTTP/1.1\r\nhost: localhost\r\n{authorization}connection: close\r\n\r\n"
    );
    wire.write_all(request.as_bytes())
        .await
        .expect("it is read");
    let mut answer = Vec::new();
    // A server may end a TLS connection without `close_notify`.
    let _ = wire.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (
        status.unwrap_or_else(|| panic!("no answer: {answer:?}")),
        answer,
    )
}

/// Reads the metrics of a broker without access control.
pub async fn scrape(broker: &BrokerProcess) -> Scrape {
    scrape_at(broker.admin(), None).await
}

/// Reads the metrics at an admin address, optionally with a bearer token.
pub async fn scrape_at(admin: SocketAddr, token: Option<&str>) -> Scrape {
    let wire = TcpStream::connect(admin).await.expect("it listens");
    let (status, answer) = request_metrics(wire, token).await;
    assert_eq!(status, 200, "{answer}");
    Scrape::parse(&answer)
}

impl Scrape {
    /// Parses a response with its headers.
    #[must_use]
    pub fn parse(answer: &str) -> Self {
        let (headers, text) = answer.split_once("\r\n\r\n").expect("headers and a body");
        assert!(
            headers
                .to_lowercase()
                .contains("content-type: application/openmetrics-text"),
            "{headers}"
        );
        assert!(text.ends_with("# EOF\n"), "it is not whole");
        let mut scrape = Self {
            text: text.to_owned(),
            types: BTreeMap::new(),
            units: BTreeMap::new(),
            families_with_help: BTreeSet::new(),
            samples: Vec::new(),
        };
        for line in text.lines().filter(|line| *line != "# EOF") {
            scrape.read_line(line);
        }
        scrape
    }

    fn read_line(&mut self, line: &str) {
        let Some(about) = line.strip_prefix("# ") else {
            return self.samples.push(parse_sample(line));
        };
        let mut words = about.splitn(3, ' ');
        let mut next = || words.next().unwrap_or_else(|| panic!("{line}")).to_owned();
        let (what, name, value) = (next(), next(), next());
        match what.as_str() {
            "TYPE" => drop(self.types.insert(name, value)),
            "UNIT" => drop(self.units.insert(name, value)),
            "HELP" => drop(self.families_with_help.insert(name)),
            _ => panic!("{line}"),
        }
    }

    /// Returns the sum of the series that have this name and these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            let is = |(key, value): &(&str, &str)| {
                sample.labels.get(*key).is_some_and(|found| found == value)
            };
            sample.name == name && labels.iter().all(is)
        };
        let values = self.samples.iter().filter(has).map(|sample| sample.value);
        // The sum of an empty iterator of floats is -0.
        values.fold(0.0, |sum, value| sum + value)
    }

    /// Returns the values of a label in all series.
    #[must_use]
    pub fn label_values(&self, label: &str) -> BTreeSet<&str> {
        let samples = self.samples.iter();
        let values = samples.filter_map(|sample| sample.labels.get(label));
        values.map(String::as_str).collect()
    }

    /// Returns the family of a series: its name, and its labels except `le`.
    #[must_use]
    pub fn family(&self, sample: &Sample) -> (String, BTreeSet<String>) {
        let ends = ["_total", "_bucket", "_sum", "_count", "_created", "_info"];
        let cut = ends.iter().filter_map(|end| sample.name.strip_suffix(end));
        let mut names = [sample.name.as_str()].into_iter().chain(cut);
        let known = names.find(|name| self.types.contains_key(*name));
        let name = known.unwrap_or_else(|| panic!("{} has no type", sample.name));
        let labels = sample.labels.keys().filter(|label| *label != "le");
        (name.to_owned(), labels.cloned().collect())
    }
}

/// Parses `name{label="value",...} value`. The values must not contain quotes.
fn parse_sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').expect("a brace")),
        None => (series, ""),
    };
    let labels = labels.split("\",").filter(|label| !label.is_empty());
    let labels = labels.map(|label| {
        let (key, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        (key.to_owned(), value.trim_end_matches('"').to_owned())
    });
    Sample {
        name: name.to_owned(),
        labels: labels.collect(),
        value: value.parse().unwrap_or_else(|_| panic!("{line}")),
    }
}
