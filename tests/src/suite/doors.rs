//! Through which doors a client gets to a broker: TLS, certificates, signed and static tokens.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use super::{
    house::{House, OTHER, Shows, TOKEN, WORKER},
    language::Cast,
    probe::Probe,
    scene::{SOON, Scene, TTL},
    wire::{Ask, Failure, Lease},
};
use crate::{broker_tls::connections, clock::boottime, scale::figures, until::until};

/// Nobody who is refused waits for longer, the start of the program included.
const AT_ONCE: Duration = Duration::from_secs(10);
/// A token's life, from its making.
const LIFE: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(60);

/// The validity of a lease: a slow machine may keep a program from its heartbeats for seconds.
const LEASE: Duration = Duration::from_secs(9);

/// Whatever a broker asks for, who has it acquires a lock, renews it, and releases it;
/// what was shown is in no output.
pub async fn each_door_lets_in_who_has_the_key(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let house = House::start(&scene).await;
    let jwt = house.doors.issuer.token(WORKER, 60, serde_json::json!({}));
    let (worker, jwt) = (Some(WORKER), Some(&*jwt));
    let doors = [
        ("tls", &house.encrypted, None, None),
        ("mtls", &house.mutual, worker, None),
        ("jwt", &house.tokens, None, jwt),
        ("mtls-jwt", &house.mutual, worker, jwt),
        ("token", &house.tokens, None, Some(TOKEN)),
    ];
    let mut inside = Vec::new();
    // One after the other: programs of some languages take long to start.
    for (lock, broker, certificate, token) in doors {
        let shows = Shows { certificate, token };
        let one = house.probe(cast.one, broker, shows).await;
        let one = one.unwrap_or_else(|failure| panic!("{lock}: {failure:?}"));
        inside.push((lock, one, token));
    }
    let gone_through = inside.iter().map(async |(lock, one, token)| {
        is_held_and_given_back(&scene, one, lock).await;
        let output = one.output();
        let shown = house.secrets_in(&output, *token);
        assert_eq!(shown, Vec::<String>::new(), "{lock}");
        output.len()
    });
    let outputs: usize = join_all(gone_through).await.into_iter().sum();
    figures(&format!("doors {:?}: 5 of 5, output={outputs}B", cast.one));
}

async fn is_held_and_given_back(scene: &Scene, one: &Probe, lock: &str) {
    let lease = one.takes(&Ask::one(lock).ttl(LEASE)).await;
    let before = scene.held(lock).await;
    assert_eq!(before.token, lease.token());
    assert!(scene.is_held(lock).await, "{lock}: two have it");
    let second = Ask::one(lock).called("second");
    let second = one.tries(&second).await.expect("an answer");
    assert!(second.is_none(), "{lock}: two have it");
    scene.renewed(lock, &before).await;
    let state = one.state(lock).await;
    assert!(state.valid && one.loss(lock).is_none(), "{lock}: {state:?}");
    one.gives(lock).await;
    assert_eq!(scene.look(lock).await, None);
}

/// Who has the wrong key, or none, is told so at once, in the client's own words; a broker that the
/// client does not know gets nothing from it.
pub async fn who_has_no_key_is_told_so(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let house = House::start(&scene).await;
    let issuer = &house.doors.issuer;
    let late = issuer.token(WORKER, -60, serde_json::json!({}));
    let (mutual, tokens) = (&house.mutual, &house.tokens);
    let (not_reached, not_known) = (
        ("Unreachable", "certificate"),
        ("CredentialRefused", "credential"),
    );
    let refusals = [
        ("no certificate", mutual, None, None, not_reached),
        ("a stranger", mutual, Some("stranger"), None, not_reached),
        ("no token", tokens, None, None, not_known),
        ("a wrong token", tokens, None, Some("wr0ng"), not_known),
        ("a late token", tokens, None, Some(&*late), not_known),
    ];
    let mut slowest = Duration::ZERO;
    for (who, broker, certificate, token, (class, word)) in refusals {
        let began = boottime();
        let shows = Shows { certificate, token };
        let failed = house.probe(cast.one, broker, shows).await;
        let failed = failed.expect_err(who);
        slowest = slowest.max(boottime() - began);
        is_clear(&failed, class, word);
        assert!(house.secrets_in(&failed.message, token).is_empty(), "{who}");
    }
    let env = house.env(&house.encrypted, Shows::default(), "stranger-ca.pem");
    let failed = Probe::start_with(cast.one.command(), &House::borrowed(&env)).await;
    is_clear(
        &failed.expect_err("not trusted"),
        "Unreachable",
        "certificate",
    );
    figures(&format!(
        "doors {:?}: 6 refused, at most {} ms after the start",
        cast.one,
        slowest.as_millis()
    ));
    assert!(slowest < AT_ONCE, "{slowest:?}");
}

/// The class, and a word of the cause, which is all that people have to go by.
fn is_clear(failed: &Failure, class: &str, word: &str) {
    let said = failed.message.to_lowercase();
    assert!(failed.class == class && said.contains(word), "{failed:?}");
}

/// Who is known and has no leave is told so, and stays connected.
pub async fn who_has_no_leave_is_told_so(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let house = House::start(&scene).await;
    let jwt = house.doors.issuer.token(OTHER, 60, serde_json::json!({}));
    let doors = [
        (&house.mutual, Some(OTHER), None),
        (&house.tokens, None, Some(&*jwt)),
    ];
    let told = doors.map(async |(broker, certificate, token)| {
        let shows = Shows { certificate, token };
        let one = house.probe(cast.one, broker, shows).await.expect("known");
        let began = boottime();
        let refused = one.acquire(&Ask::one("a").wait(WAIT)).await;
        let refused = refused.expect_err("not allowed");
        assert_eq!(refused.class, "PermissionDenied", "{refused:?}");
        let tried = one.tries(&Ask::one("a")).await.expect_err("not allowed");
        assert_eq!(tried.class, "PermissionDenied", "{tried:?}");
        assert!(boottime() - began < SOON * 2, "{:?}", boottime() - began);
        assert_eq!(scene.state("a").await, None);
        one.takes(&Ask::one("public/a")).await;
        one.gives("public/a").await;
    });
    join_all(told).await;
}

/// A lock outlives a token of the file if the file has the next one in time, and no longer: then its holder is notified,
/// waits are refused, and another token is accepted again.
pub async fn a_lock_ends_with_the_last_of_its_tokens(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let house = House::start(&scene).await;
    // Slow languages beside other tests need seconds to start.
    house.set_token(&house.living_for(WAIT));
    let env = house.env_of_file(&house.tokens);
    let one = Probe::start_with(cast.one.command(), &House::borrowed(&env)).await;
    let one = one.expect("a good token");
    // Programs that write all that can be logged are late with renewals on a busy machine.
    let lease = one.takes(&Ask::one("a").ttl(TTL * 2)).await;

    let begun = boottime();
    house.set_token(&house.living_for(LIFE));
    sleep((begun + LIFE / 2).saturating_sub(boottime())).await;
    let replaced = boottime();
    let second = house.living_for(LIFE);
    house.set_token(&second);
    sleep((begun + LIFE + SOON).saturating_sub(boottime())).await;
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    let now = scene.held("a").await;
    assert_eq!(now.token, lease.token());

    let loss = one.lost("a").await;
    assert_eq!(loss.reason, "CredentialExpired");
    let lived = loss.at - replaced;
    // Times in tokens are whole seconds.
    assert!(
        lived + SOON >= LIFE && lived <= LIFE + SOON * 2,
        "{lived:?} of {LIFE:?}"
    );
    let freed = scene.expired("a").await;
    let asked = boottime();
    let refused = one.acquire(&Ask::one("b").wait(WAIT)).await;
    let refused = refused.expect_err("its token is over");
    assert_eq!(refused.class, "Unauthenticated", "{refused:?}");
    assert!(boottime() - asked < SOON * 3, "{:?}", boottime() - asked);

    let next = is_let_in_again(&house, &one).await;
    assert!(next.token() > lease.token());
    assert!(house.secrets_in(&one.output(), Some(&second)).is_empty());
    figures(&format!(
        "doors {:?}: second token lived {} ms, free {} ms after the holder knew",
        cast.one,
        lived.as_millis(),
        freed.saturating_sub(loss.at).as_millis()
    ));
}

/// While a stream with the old token is on its way: that one's refusal is no answer to a call.
async fn is_let_in_again(house: &House, one: &Probe) -> Lease {
    let next = house.living_for(WAIT);
    let broker = &house.tokens;
    broker.process().pause().await;
    let call = one.asks(&Ask::one("a").called("next").wait(WAIT));
    until("it dials", async || {
        let is_dialled = !connections(broker.addr()).is_empty();
        is_dialled.then_some(())
    })
    .await;
    house.set_token(&next);
    broker.process().resume();
    let next = call.lease().await;
    next.expect("the next token is good")
}
