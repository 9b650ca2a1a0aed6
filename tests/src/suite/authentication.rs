//! Scenarios of authentication: TLS, client certificates, signed and static tokens.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use super::{
    language::Cast,
    messages::{Failure, Lease, ProbeAcquire},
    probe::Probe,
    scenario::{DELAY_MAX, ScenarioFixture, TTL},
    secured_brokers::{ClientCredentials, PUBLIC_CALLER, SecuredBrokers, TOKEN, WORKER},
};
use crate::{broker::tls::open_client_ports, clock::boottime, scale::print_figures, until::until};

/// Maximum time until a rejection, including the start of the program.
const REJECTED_WITHIN: Duration = Duration::from_secs(10);
/// Lifetime of a token, from its creation.
const TOKEN_LIFETIME: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(60);

/// TTL of leases. A slow machine may delay the heartbeats of a program by seconds.
const LEASE_TTL: Duration = Duration::from_secs(9);

/// With the credential that a broker requires, a client acquires, renews and releases a lock. The
/// credential is in no output.
pub async fn each_kind_of_credential_is_accepted(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let secured = SecuredBrokers::start(&fixture).await;
    let jwt = secured
        .access_files
        .issuer
        .token(WORKER, 60, serde_json::json!({}));
    let (worker, jwt) = (Some(WORKER), Some(&*jwt));
    let access_files = [
        ("tls", &secured.tls_broker, None, None),
        ("mtls", &secured.mutual_tls_broker, worker, None),
        ("jwt", &secured.token_broker, None, jwt),
        ("mtls-jwt", &secured.mutual_tls_broker, worker, jwt),
        ("token", &secured.token_broker, None, Some(TOKEN)),
    ];
    let mut inside = Vec::new();
    // The probes start one after the other, because programs of some languages start slowly.
    for (lock, broker, certificate, token) in access_files {
        let credentials = ClientCredentials { certificate, token };
        let one = secured.probe(cast.one, broker, credentials).await;
        let one = one.unwrap_or_else(|failure| panic!("{lock}: {failure:?}"));
        inside.push((lock, one, token));
    }
    let gone_through = inside.iter().map(async |(lock, one, token)| {
        check_hold_and_release(&fixture, one, lock).await;
        let output = one.output();
        let leaked = secured.secrets_in(&output, *token);
        assert_eq!(leaked, Vec::<String>::new(), "{lock}");
        output.len()
    });
    let outputs: usize = join_all(gone_through).await.into_iter().sum();
    print_figures(&format!("doors {:?}: 5 of 5, output={outputs}B", cast.one));
}

async fn check_hold_and_release(fixture: &ScenarioFixture, one: &Probe, lock: &str) {
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive(lock).with_ttl(LEASE_TTL))
        .await;
    let before = fixture.expect_holder(lock).await;
    assert_eq!(before.token, lease.token());
    assert!(
        fixture.is_rejected_as_held(lock).await,
        "{lock}: two have it"
    );
    let second = ProbeAcquire::exclusive(lock).with_lease_name("second");
    let second = one.try_acquire(&second).await.expect("an answer");
    assert!(second.is_none(), "{lock}: two have it");
    fixture.wait_until_renewed(lock, &before).await;
    let state = one.state(lock).await;
    assert!(state.valid && one.loss(lock).is_none(), "{lock}: {state:?}");
    one.expect_released(lock).await;
    assert_eq!(fixture.holder(lock).await, None);
}

/// A client without a valid credential is rejected at once, with the client's own error. A broker
/// that the client does not trust receives no credential.
pub async fn a_client_without_a_valid_credential_is_rejected(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let secured = SecuredBrokers::start(&fixture).await;
    let issuer = &secured.access_files.issuer;
    let late = issuer.token(WORKER, -60, serde_json::json!({}));
    let (mutual, tokens) = (&secured.mutual_tls_broker, &secured.token_broker);
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
        let credentials = ClientCredentials { certificate, token };
        let failed = secured.probe(cast.one, broker, credentials).await;
        let failed = failed.expect_err(who);
        slowest = slowest.max(boottime() - began);
        assert_clear_error(&failed, class, word);
        assert!(
            secured.secrets_in(&failed.message, token).is_empty(),
            "{who}"
        );
    }
    let env = secured.env(
        &secured.tls_broker,
        ClientCredentials::default(),
        "stranger-ca.pem",
    );
    let failed = Probe::start_with(cast.one.command(), &SecuredBrokers::borrow_env(&env)).await;
    assert_clear_error(
        &failed.expect_err("not trusted"),
        "Unreachable",
        "certificate",
    );
    print_figures(&format!(
        "doors {:?}: 6 refused, at most {} ms after the start",
        cast.one,
        slowest.as_millis()
    ));
    assert!(slowest < REJECTED_WITHIN, "{slowest:?}");
}

/// Asserts the error class, and a word of the cause, which users rely on.
fn assert_clear_error(failed: &Failure, class: &str, word: &str) {
    let message = failed.message.to_lowercase();
    assert!(
        failed.class == class && message.contains(word),
        "{failed:?}"
    );
}

/// A client without permission is rejected, and stays connected.
pub async fn a_client_without_permission_is_rejected(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let secured = SecuredBrokers::start(&fixture).await;
    let jwt = secured
        .access_files
        .issuer
        .token(PUBLIC_CALLER, 60, serde_json::json!({}));
    let access_files = [
        (&secured.mutual_tls_broker, Some(PUBLIC_CALLER), None),
        (&secured.token_broker, None, Some(&*jwt)),
    ];
    let results = access_files.map(async |(broker, certificate, token)| {
        let credentials = ClientCredentials { certificate, token };
        let one = secured
            .probe(cast.one, broker, credentials)
            .await
            .expect("known");
        let began = boottime();
        // The lock is free: a client that is refused at once does not use up its wait.
        let refused = one
            .acquire(&ProbeAcquire::exclusive("a").with_wait(WAIT))
            .await;
        let refused = refused.expect_err("not allowed");
        assert_eq!(refused.class, "PermissionDenied", "{refused:?}");
        let tried = one
            .try_acquire(&ProbeAcquire::exclusive("a"))
            .await
            .expect_err("not allowed");
        assert_eq!(tried.class, "PermissionDenied", "{tried:?}");
        assert!(boottime() - began < WAIT, "{:?}", boottime() - began);
        assert_eq!(fixture.state("a").await, None);
        one.expect_acquired(&ProbeAcquire::exclusive("public/a"))
            .await;
        one.expect_released("public/a").await;
    });
    join_all(results).await;
}

/// A lock outlives a token in the file if the file has the next token in time. Otherwise its holder
/// is notified, waits are rejected, and a later token is accepted again.
pub async fn a_lock_ends_with_the_last_of_its_tokens(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let secured = SecuredBrokers::start(&fixture).await;
    // Beside other tests, slow languages need seconds to start.
    secured.set_token(&secured.token_valid_for(WAIT));
    let env = secured.env_with_token_file(&secured.token_broker);
    let one = Probe::start_with(cast.one.command(), &SecuredBrokers::borrow_env(&env)).await;
    let one = one.expect("a good token");
    // On a busy machine, programs that log at trace level renew late.
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL * 2))
        .await;

    let started_at = boottime();
    secured.set_token(&secured.token_valid_for(TOKEN_LIFETIME));
    sleep((started_at + TOKEN_LIFETIME / 2).saturating_sub(boottime())).await;
    let replaced = boottime();
    let second = secured.token_valid_for(TOKEN_LIFETIME);
    secured.set_token(&second);
    sleep((started_at + TOKEN_LIFETIME + DELAY_MAX).saturating_sub(boottime())).await;
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    let now = fixture.expect_holder("a").await;
    assert_eq!(now.token, lease.token());

    let loss = one.wait_for_loss("a").await;
    assert_eq!(loss.reason, "CredentialExpired");
    let lived = loss.at - replaced;
    // Times in tokens are whole seconds.
    assert!(
        lived + DELAY_MAX >= TOKEN_LIFETIME && lived <= TOKEN_LIFETIME + DELAY_MAX * 2,
        "{lived:?} of {TOKEN_LIFETIME:?}"
    );
    let freed = fixture.wait_until_expired("a").await;
    let asked_at = boottime();
    let refused = one
        .acquire(&ProbeAcquire::exclusive("b").with_wait(WAIT))
        .await;
    let refused = refused.expect_err("its token is over");
    assert_eq!(refused.class, "Unauthenticated", "{refused:?}");
    assert!(boottime() - asked_at < WAIT, "{:?}", boottime() - asked_at);

    let next = acquire_with_replaced_token(&secured, &one).await;
    assert!(next.token() > lease.token());
    assert!(secured.secrets_in(&one.output(), Some(&second)).is_empty());
    print_figures(&format!(
        "doors {:?}: second token lived {} ms, free {} ms after the holder knew",
        cast.one,
        lived.as_millis(),
        freed.saturating_sub(loss.at).as_millis()
    ));
}

/// Replaces the token while the client opens a stream with the old one. The rejection of the stream
/// must not fail the call.
async fn acquire_with_replaced_token(secured: &SecuredBrokers, one: &Probe) -> Lease {
    let next = secured.token_valid_for(WAIT);
    let broker = &secured.token_broker;
    broker.process().pause().await;
    let call = one.start_acquire(
        &ProbeAcquire::exclusive("a")
            .with_lease_name("next")
            .with_wait(WAIT),
    );
    until("it dials", async || {
        let is_dialled = !open_client_ports(broker.addr()).is_empty();
        is_dialled.then_some(())
    })
    .await;
    secured.set_token(&next);
    broker.process().resume();
    let next = call.lease().await;
    next.expect("the next token is good")
}
