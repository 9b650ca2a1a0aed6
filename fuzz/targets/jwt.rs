//! Fuzzes the verification of bearer tokens and key sets. The lines of the input are a header,
//! claims and a key set, as JSON.
#![no_main]

use std::sync::{Arc, LazyLock};

use data_encoding::BASE64URL_NOPAD;
use leasehold_server::{
    access::{AccessControl, AccessRules, Jwt, Policy, PresentedCredentials, Tokens},
    metrics::Metrics,
};
use libfuzzer_sys::fuzz_target;
use ring::signature::Ed25519KeyPair;
use serde_json::Value;
use tokio::sync::watch;

const ISSUER: &str = "issuer";
const AUDIENCE: &str = "leasehold";
/// Keys of RFC 8032, section 7.1, test 1.
const KEY_SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a",
    "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
const PRIVATE_KEY: &[u8; 32] = b"\x9d\x61\xb1\x9d\xef\xfd\x5a\x60\xba\x84\x4a\xf4\x92\xec\x2c\xc4\
    \x44\x49\xc5\x69\x7b\x32\x69\x19\x70\x3b\xac\x03\x1c\xae\x7f\x60";

static KEY: LazyLock<Ed25519KeyPair> =
    LazyLock::new(|| Ed25519KeyPair::from_seed_unchecked(PRIVATE_KEY).expect("a key"));
static ACCESS_CONTROL: LazyLock<AccessControl> =
    LazyLock::new(|| access_control(KEY_SET).expect("a key set"));

fuzz_target!(|input: &str| {
    let mut lines = input.lines();
    let mut line = || lines.next().unwrap_or_default();
    let (header, claims, key_set) = (line(), line(), line());
    let [head, body] = [header, claims].map(|json| BASE64URL_NOPAD.encode(json.as_bytes()));
    let signed = format!("{head}.{body}");
    let signature = BASE64URL_NOPAD.encode(KEY.sign(signed.as_bytes()).as_ref());
    let token = format!("{signed}.{signature}");
    if is_accepted(&ACCESS_CONTROL, &token) {
        for (json, name, expected) in [(header, "alg", "EdDSA"), (claims, "iss", ISSUER)] {
            // A claim that the broker ignores may be a number that is no `Value`, such as 1e1000.
            if let Ok(fields) = serde_json::from_str::<Value>(json) {
                assert_eq!(fields[name], expected);
            }
        }
    }
    assert!(
        !is_accepted(&ACCESS_CONTROL, &format!("{signed}.")),
        "without a signature"
    );
    is_accepted(&ACCESS_CONTROL, header);
    if let Ok(access_control) = access_control(key_set) {
        is_accepted(&access_control, &token);
    }
});

fn access_control(key_set: &str) -> Result<AccessControl, String> {
    let rules = AccessRules {
        requires_authentication: true,
        tokens: Tokens::default(),
        jwt: Some(Jwt::new(key_set, ISSUER, AUDIENCE)?),
        policy: Policy::allow_all(),
    };
    let (_, rules) = watch::channel(Arc::new(rules));
    Ok(AccessControl::new(rules, Metrics::off()))
}

fn is_accepted(access_control: &AccessControl, token: &str) -> bool {
    let caller = access_control.authenticate(PresentedCredentials {
        address: None,
        certificate: None,
        bearer: Some(token),
    });
    let Ok(caller) = caller else { return false };
    assert!(caller.name.starts_with("jwt:"));
    assert!(access_control.is_still_valid(&caller));
    caller.deadline();
    true
}
