//! The command line with every kind of access control of a broker: TLS, client certificates, signed
//! and static tokens.

use std::time::Duration;

use leasehold_tests::{
    broker::process::BrokerProcess,
    clock::boottime,
    load::store_expiry::store_expiry,
    process::{
        leasehold_command::{Cli, RunningCommand},
        temp_dir::TempDir,
    },
    scale::print_figures,
    suite::{
        language::{Cast, Language},
        scenario::ScenarioFixture,
        secured_brokers::{ClientCredentials, PUBLIC_CALLER, SecuredBrokers, TOKEN, WORKER},
    },
};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// Upper bound of the time until a rejection.
const AT_ONCE: Duration = Duration::from_secs(5);
const OWN_FAILURE: Option<i32> = Some(125);
const VERBS: [&[&str]; 4] = [
    &["acquire", "a"],
    &["hold", "a"],
    &["run", "a", "--", "true"],
    &["get", "a"],
];

/// The program with its flags for one kind of access control.
struct Caller {
    cli: Cli,
    flags: Vec<String>,
}

impl Caller {
    fn at(
        secured: &SecuredBrokers,
        broker: &BrokerProcess,
        credentials: ClientCredentials<'_>,
        authority: &str,
    ) -> Self {
        let cli = Cli {
            endpoint: format!("https://{}", broker.addr()),
            home: TempDir::new("cli"),
        };
        let mut flags = vec![format!("--ca-file={}", secured.path(authority))];
        if let Some(name) = credentials.certificate {
            flags.push(format!(
                "--cert-file={}",
                secured.path(&format!("{name}.pem"))
            ));
            flags.push(format!(
                "--key-file={}",
                secured.path(&format!("{name}.key"))
            ));
        }
        if let Some(token) = credentials.token {
            let file = cli.write("token", &format!("{token}\n"));
            flags.push(format!("--token-file={file}"));
        }
        Self { cli, flags }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let flags = self.flags.iter().map(String::as_str);
        args.iter().copied().chain(flags).collect()
    }

    fn start(&self, args: &[&str]) -> RunningCommand {
        self.cli.start(&self.args(args))
    }
}

async fn fixture() -> (ScenarioFixture, SecuredBrokers) {
    let cast = Cast {
        one: Language::Rust,
        other: Language::Rust,
    };
    let fixture = ScenarioFixture::start(cast, 1).await;
    let secured = SecuredBrokers::start(&fixture).await;
    (fixture, secured)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_credential_is_accepted() {
    let (fixture, secured) = fixture().await;
    let jwt = secured.access_files.issuer.token(WORKER, 60, json!({}));
    let (worker, jwt) = (Some(WORKER), Some(&*jwt));
    let access_files = [
        ("tls", &secured.tls_broker, None, None),
        ("mtls", &secured.mutual_tls_broker, worker, None),
        ("jwt", &secured.token_broker, None, jwt),
        ("mtls-jwt", &secured.mutual_tls_broker, worker, jwt),
        ("token", &secured.token_broker, None, Some(TOKEN)),
    ];
    let gone_through = access_files.map(async |(lock, broker, certificate, token)| {
        let credentials = ClientCredentials { certificate, token };
        let one = Caller::at(&secured, broker, credentials, "ca.pem");
        let mut holding = one.start(&["hold", "--ttl=2s", lock]);
        let line = holding.next_stdout_line().await;
        assert!(line.contains(&format!("holding {lock}")), "{line}");
        let before = fixture.expect_holder(lock).await;
        // The pause exceeds the expiry without heartbeats.
        sleep(store_expiry(TTL) + TTL / 2).await;
        assert!(boottime() > before.latest);
        let now = fixture.expect_holder(lock).await;
        assert_eq!((now.lease_id, now.token), (before.lease_id, before.token));
        let second = one.cli.run(&one.args(&["acquire", "-n", lock])).await;
        assert_eq!(second.code, Some(124), "{lock}: two have it: {second:?}");
        holding.signal(Signal::INT);
        let ended = holding.wait_for_exit().await;
        assert_eq!(ended.code, Some(0), "{lock}: {ended:?}");
        assert_eq!(fixture.holder(lock).await, None);
        let reply = one.cli.run(&one.args(&["get", lock])).await;
        let output = [
            line,
            second.stdout,
            second.stderr,
            ended.stdout,
            ended.stderr,
        ];
        let output = output.concat() + &reply.stdout + &reply.stderr;
        assert_eq!(secured.secrets_in(&output, token), Vec::<String>::new());
    });
    futures::future::join_all(gone_through).await;
    print_figures("doors cli: 5 of 5");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_valid_credential_is_rejected() {
    let (fixture, secured) = fixture().await;
    let issuer = &secured.access_files.issuer;
    let late = issuer.token(WORKER, -60, json!({}));
    let other = issuer.token(PUBLIC_CALLER, 60, json!({}));
    let (mutual, tokens) = (&secured.mutual_tls_broker, &secured.token_broker);
    let mut slowest = Duration::ZERO;
    for (who, broker, certificate, token, word) in [
        ("no certificate", mutual, None, None, "certificate"),
        ("a stranger", mutual, Some("stranger"), None, "certificate"),
        ("no token", tokens, None, None, "credential"),
        ("a wrong token", tokens, None, Some("wr0ng"), "credential"),
        ("a late token", tokens, None, Some(&*late), "credential"),
        ("no leave", tokens, None, Some(&*other), "allow"),
        ("no leave", mutual, Some(PUBLIC_CALLER), None, "allow"),
    ] {
        let credentials = ClientCredentials { certificate, token };
        let one = Caller::at(&secured, broker, credentials, "ca.pem");
        // The broker rate limits failed authentication attempts per address.
        let verbs = match word {
            "credential" => &VERBS[..2],
            _ => &VERBS[..],
        };
        for verb in verbs {
            let began = boottime();
            // The flags precede the command that `run` starts.
            let flags = one.flags.iter().map(String::as_str);
            let args: Vec<_> = flags.chain(verb.iter().copied()).collect();
            let ran = one.cli.run(&args).await;
            slowest = slowest.max(boottime() - began);
            assert_eq!(ran.code, OWN_FAILURE, "{who} {verb:?}: {ran:?}");
            let line = ran.stderr.to_lowercase();
            assert!(line.contains(word), "{who} {verb:?}: {line}");
            let output = ran.stdout + &ran.stderr;
            assert!(secured.secrets_in(&output, token).is_empty(), "{output}");
        }
    }
    let stranger = Caller::at(
        &secured,
        &secured.tls_broker,
        ClientCredentials::default(),
        "stranger-ca.pem",
    );
    let refused = stranger.cli.run(&stranger.args(&["acquire", "a"])).await;
    assert_eq!(refused.code, OWN_FAILURE);
    assert!(refused.stderr.contains("certificate"), "{refused:?}");
    assert_eq!(fixture.state("a").await, None);
    print_figures(&format!(
        "doors cli: 23 refused, at most {} ms",
        slowest.as_millis()
    ));
    assert!(slowest < AT_ONCE, "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_on_with_the_next_token_of_the_file() {
    const LIFE: Duration = Duration::from_secs(4);
    let (fixture, secured) = fixture().await;
    let started_at = boottime();
    secured.set_token(&secured.token_valid_for(LIFE));
    let mut one = Caller::at(
        &secured,
        &secured.token_broker,
        ClientCredentials::default(),
        "ca.pem",
    );
    one.flags
        .push(format!("--token-file={}", secured.path("token")));
    let mut holding = one.start(&["hold", "--ttl=2s", "a"]);
    holding.next_stdout_line().await;
    let before = fixture.expect_holder("a").await;
    secured.set_token(&secured.token_valid_for(LIFE * 2));
    sleep((started_at + LIFE + TIME_LIMIT * 2).saturating_sub(boottime())).await;
    let now = fixture.expect_holder("a").await;
    assert_eq!((now.lease_id, now.token), (before.lease_id, before.token));
    let ended = holding.wait_for_exit().await;
    assert_eq!(ended.code, Some(123), "{ended:?}");
    assert!(ended.stderr.contains("credential"), "{ended:?}");
    assert!(boottime() - started_at >= LIFE * 2 - TIME_LIMIT);
}
