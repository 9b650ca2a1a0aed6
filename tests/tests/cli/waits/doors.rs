//! The command line through every door of a broker: TLS, client certificates, signed and static tokens.

use std::time::Duration;

use leasehold_tests::{
    broker_process::BrokerProcess,
    cli::{Cli, Running},
    clock::boottime,
    scale::figures,
    suite::{
        house::{House, OTHER, Shows, TOKEN, WORKER},
        language::{Cast, Language},
        scene::Scene,
    },
    temp_dir::TempDir,
    time_left::expiry,
};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(1);
/// Nobody who is refused waits for longer.
const AT_ONCE: Duration = Duration::from_secs(5);
const OWN_FAILURE: Option<i32> = Some(125);
const VERBS: [&[&str]; 4] = [
    &["acquire", "a"],
    &["hold", "a"],
    &["run", "a", "--", "true"],
    &["get", "a"],
];

/// The program at one door, and who watches the lock from another one.
struct Caller {
    cli: Cli,
    flags: Vec<String>,
}

impl Caller {
    fn at(house: &House, broker: &BrokerProcess, shows: Shows<'_>, authority: &str) -> Self {
        let cli = Cli {
            endpoint: format!("https://{}", broker.addr()),
            home: TempDir::new("cli"),
        };
        let mut flags = vec![format!("--ca-file={}", house.path(authority))];
        if let Some(name) = shows.certificate {
            flags.push(format!(
                "--cert-file={}",
                house.path(&format!("{name}.pem"))
            ));
            flags.push(format!("--key-file={}", house.path(&format!("{name}.key"))));
        }
        if let Some(token) = shows.token {
            let file = cli.write("token", &format!("{token}\n"));
            flags.push(format!("--token-file={file}"));
        }
        Self { cli, flags }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let flags = self.flags.iter().map(String::as_str);
        args.iter().copied().chain(flags).collect()
    }

    fn start(&self, args: &[&str]) -> Running {
        self.cli.start(&self.args(args))
    }
}

async fn scene() -> (Scene, House) {
    let cast = Cast {
        one: Language::Rust,
        other: Language::Rust,
    };
    let scene = Scene::start(cast, 1).await;
    let house = House::start(&scene).await;
    (scene, house)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_door_lets_in_who_has_the_key() {
    let (scene, house) = scene().await;
    let jwt = house.doors.issuer.token(WORKER, 60, json!({}));
    let (worker, jwt) = (Some(WORKER), Some(&*jwt));
    let doors = [
        ("tls", &house.encrypted, None, None),
        ("mtls", &house.mutual, worker, None),
        ("jwt", &house.tokens, None, jwt),
        ("mtls-jwt", &house.mutual, worker, jwt),
        ("token", &house.tokens, None, Some(TOKEN)),
    ];
    let gone_through = doors.map(async |(lock, broker, certificate, token)| {
        let shows = Shows { certificate, token };
        let one = Caller::at(&house, broker, shows, "ca.pem");
        let mut holding = one.start(&["hold", "--ttl=2s", lock]);
        let said = holding.line().await;
        assert!(said.contains(&format!("holding {lock}")), "{said}");
        let before = scene.held(lock).await;
        // Longer than the store keeps it without heartbeats.
        sleep(expiry(TTL) + TTL / 2).await;
        assert!(boottime() > before.latest);
        let now = scene.held(lock).await;
        assert_eq!((now.lease_id, now.token), (before.lease_id, before.token));
        let second = one.cli.run(&one.args(&["acquire", "-n", lock])).await;
        assert_eq!(second.code, Some(124), "{lock}: two have it: {second:?}");
        holding.signal(Signal::INT);
        let ended = holding.ended().await;
        assert_eq!(ended.code, Some(0), "{lock}: {ended:?}");
        assert_eq!(scene.look(lock).await, None);
        let looked = one.cli.run(&one.args(&["get", lock])).await;
        let output = [
            said,
            second.stdout,
            second.stderr,
            ended.stdout,
            ended.stderr,
        ];
        let output = output.concat() + &looked.stdout + &looked.stderr;
        assert_eq!(house.secrets_in(&output, token), Vec::<String>::new());
    });
    futures::future::join_all(gone_through).await;
    figures("doors cli: 5 of 5");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_key_is_told_so() {
    let (scene, house) = scene().await;
    let issuer = &house.doors.issuer;
    let late = issuer.token(WORKER, -60, json!({}));
    let other = issuer.token(OTHER, 60, json!({}));
    let (mutual, tokens) = (&house.mutual, &house.tokens);
    let mut slowest = Duration::ZERO;
    for (who, broker, certificate, token, word) in [
        ("no certificate", mutual, None, None, "certificate"),
        ("a stranger", mutual, Some("stranger"), None, "certificate"),
        ("no token", tokens, None, None, "credential"),
        ("a wrong token", tokens, None, Some("wr0ng"), "credential"),
        ("a late token", tokens, None, Some(&*late), "credential"),
        ("no leave", tokens, None, Some(&*other), "allow"),
        ("no leave", mutual, Some(OTHER), None, "allow"),
    ] {
        let shows = Shows { certificate, token };
        let one = Caller::at(&house, broker, shows, "ca.pem");
        // A broker hears so many failures of an address and no more.
        let verbs = match word {
            "credential" => &VERBS[..2],
            _ => &VERBS[..],
        };
        for verb in verbs {
            let began = boottime();
            // The flags stand before the command that `run` runs.
            let flags = one.flags.iter().map(String::as_str);
            let args: Vec<_> = flags.chain(verb.iter().copied()).collect();
            let ran = one.cli.run(&args).await;
            slowest = slowest.max(boottime() - began);
            assert_eq!(ran.code, OWN_FAILURE, "{who} {verb:?}: {ran:?}");
            let said = ran.stderr.to_lowercase();
            assert!(said.contains(word), "{who} {verb:?}: {said}");
            let output = ran.stdout + &ran.stderr;
            assert!(house.secrets_in(&output, token).is_empty(), "{output}");
        }
    }
    let stranger = Caller::at(
        &house,
        &house.encrypted,
        Shows::default(),
        "stranger-ca.pem",
    );
    let refused = stranger.cli.run(&stranger.args(&["acquire", "a"])).await;
    assert_eq!(refused.code, OWN_FAILURE);
    assert!(refused.stderr.contains("certificate"), "{refused:?}");
    assert_eq!(scene.state("a").await, None);
    figures(&format!(
        "doors cli: 23 refused, at most {} ms",
        slowest.as_millis()
    ));
    assert!(slowest < AT_ONCE, "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_on_with_the_next_token_of_the_file() {
    const LIFE: Duration = Duration::from_secs(4);
    let (scene, house) = scene().await;
    let begun = boottime();
    house.set_token(&house.living_for(LIFE));
    let mut one = Caller::at(&house, &house.tokens, Shows::default(), "ca.pem");
    one.flags
        .push(format!("--token-file={}", house.path("token")));
    let mut holding = one.start(&["hold", "--ttl=2s", "a"]);
    holding.line().await;
    let before = scene.held("a").await;
    house.set_token(&house.living_for(LIFE * 2));
    sleep((begun + LIFE + SOON * 2).saturating_sub(boottime())).await;
    let now = scene.held("a").await;
    assert_eq!((now.lease_id, now.token), (before.lease_id, before.token));
    let ended = holding.ended().await;
    assert_eq!(ended.code, Some(123), "{ended:?}");
    assert!(ended.stderr.contains("credential"), "{ended:?}");
    assert!(boottime() - begun >= LIFE * 2 - SOON);
}
