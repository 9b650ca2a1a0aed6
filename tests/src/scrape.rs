//! What a broker shows on `/metrics`, read as Prometheus reads it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::broker_process::BrokerProcess;

/// One series, and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// With what histograms and counters put behind it.
    pub name: String,
    /// By their names.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// All of it.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// As it came.
    pub text: String,
    /// The type of each family, by its name.
    pub types: BTreeMap<String, String>,
    /// The unit of those that have one.
    pub units: BTreeMap<String, String>,
    /// Families that say what they are.
    pub helped: BTreeSet<String>,
    /// All series.
    pub samples: Vec<Sample>,
}

/// Asks for it, with a bearer token or without; the status, and the answer with its headers.
pub async fn ask(
    mut wire: impl AsyncRead + AsyncWrite + Unpin,
    token: Option<&str>,
) -> (u16, String) {
    let shown = token.map_or_else(String::new, |token| {
        format!("authorization: Bearer {token}\r\n")
    });
    let request =
        format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\n{shown}connection: close\r\n\r\n");
    wire.write_all(request.as_bytes())
        .await
        .expect("it is read");
    let mut answer = Vec::new();
    // A TLS connection may end without its own good-bye.
    let _ = wire.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (
        status.unwrap_or_else(|| panic!("no answer: {answer:?}")),
        answer,
    )
}

/// What a broker that asks nobody who they are shows now.
pub async fn scrape(broker: &BrokerProcess) -> Scrape {
    scrape_at(broker.admin(), None).await
}

/// What is shown at an address, to somebody with that token.
pub async fn scrape_at(admin: SocketAddr, token: Option<&str>) -> Scrape {
    let wire = TcpStream::connect(admin).await.expect("it listens");
    let (status, answer) = ask(wire, token).await;
    assert_eq!(status, 200, "{answer}");
    Scrape::of(&answer)
}

impl Scrape {
    /// Of an answer with its headers.
    #[must_use]
    pub fn of(answer: &str) -> Self {
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
            helped: BTreeSet::new(),
            samples: Vec::new(),
        };
        for line in text.lines().filter(|line| *line != "# EOF") {
            scrape.read(line);
        }
        scrape
    }

    fn read(&mut self, line: &str) {
        let Some(about) = line.strip_prefix("# ") else {
            return self.samples.push(sample(line));
        };
        let mut words = about.splitn(3, ' ');
        let mut next = || words.next().unwrap_or_else(|| panic!("{line}")).to_owned();
        let (what, name, value) = (next(), next(), next());
        match what.as_str() {
            "TYPE" => drop(self.types.insert(name, value)),
            "UNIT" => drop(self.units.insert(name, value)),
            "HELP" => drop(self.helped.insert(name)),
            _ => panic!("{line}"),
        }
    }

    /// The sum of the series of that name which have these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            let is = |(key, value): &(&str, &str)| {
                sample.labels.get(*key).is_some_and(|found| found == value)
            };
            sample.name == name && labels.iter().all(is)
        };
        let values = self.samples.iter().filter(has).map(|sample| sample.value);
        // A sum of none is -0.
        values.fold(0.0, |sum, value| sum + value)
    }

    /// The values of a label, in all series.
    #[must_use]
    pub fn values(&self, label: &str) -> BTreeSet<&str> {
        let samples = self.samples.iter();
        let values = samples.filter_map(|sample| sample.labels.get(label));
        values.map(String::as_str).collect()
    }

    /// The family of a series: its name, and the labels that it has beside those of histograms.
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

/// Reads `name{label="value",...} value`; no value here has a quote in it.
fn sample(line: &str) -> Sample {
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
