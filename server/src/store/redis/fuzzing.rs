//! Entry points of the store's fuzz targets: replies of scripts and servers, and messages of
//! brokers.

use std::sync::LazyLock;

use fred::{
    error::{Error, ErrorKind},
    types::Value,
};

use super::{
    cluster::{read_slots, redirect::Redirect},
    era::Era,
    error_table::ErrorClass,
    location::Address,
    owner_codec,
    pubsub::{decode_message, lock_key_of},
    reply::{self, ReplyFields},
    scripts::calls,
    verify::ServerInfo,
};
use crate::lock::BrokerId;

/// Prefix of the keys in the messages of the fuzz target.
const KEY_PREFIX: &str = "lh:";

static BROKER: LazyLock<BrokerId> = LazyLock::new(|| match BrokerId::parse("abcdefghij234567") {
    Some(broker) => broker,
    None => unreachable!("it has the characters of an id, and as many"),
});

/// Decodes a reply as the reply of each script. The input is parsed by `value`.
pub fn script_reply(input: &[u8]) {
    let reply = value(input);
    for count in [1, 2] {
        drop(reply::split_batch(Ok(reply.clone()), count));
    }
    read(&reply, calls::voted);
    read(&reply, calls::acquired);
    read(&reply, calls::renewed);
    read(&reply, calls::attached);
    read(&reply, calls::released);
    read(&reply, calls::cancelled);
    read(&reply, calls::touched);
    read(&reply, calls::limit_set);
    read(&reply, calls::revoked);
    read(&reply, calls::checked);
    read(&reply, |_, fields| calls::lock_state(fields));
    let from = Address {
        host: "127.0.0.1".to_owned(),
        port: 6379,
    };
    read_slots(reply, &from);
    let text = String::from_utf8_lossy(input);
    if let Ok(era) = Era::parse(&text) {
        era.bounds.quarantine_ms();
    }
    drop(ServerInfo::parse(&text).identity());
    let error = Error::new(ErrorKind::Unknown, text.into_owned());
    drop(Redirect::from_error(&error, &from));
    let _ = ErrorClass::classify(&error);
}

/// Decodes a message of another broker.
pub fn broker_message(payload: &[u8]) {
    decode_message(payload, KEY_PREFIX, *BROKER);
    let key = lock_key_of(payload);
    if let Some(owner) = owner_codec::decode(&payload[key.len()..]) {
        assert_eq!(
            owner_codec::decode(&owner_codec::encode(&owner)),
            Some(owner)
        );
    }
}

fn read<T>(reply: &Value, decode: fn(&str, &mut ReplyFields) -> Option<T>) {
    if let Ok(decoded) = reply::decode(reply.clone(), *BROKER, decode) {
        let now_us = decoded.now_ms.checked_mul(1_000);
        assert!(now_us.is_some(), "the clock of a node counts microseconds");
    }
}

/// Builds a reply from `input`, which has one element on each line: `[` and `]` around an array,
/// `:` before an integer, `_` for null; every other line is a string. Every input is valid.
fn value(input: &[u8]) -> Value {
    let mut arrays = vec![Vec::new()];
    for line in input.split(|&byte| byte == b'\n') {
        let element = match line {
            b"[" => {
                arrays.push(Vec::new());
                continue;
            }
            b"]" if arrays.len() > 1 => Value::Array(arrays.pop().unwrap_or_default()),
            b"_" => Value::Null,
            line => string_or_integer(line),
        };
        if let Some(array) = arrays.last_mut() {
            array.push(element);
        }
    }
    let inside_out = arrays.into_iter().rev();
    let nested = inside_out.reduce(|inner, mut outer| {
        outer.push(Value::Array(inner));
        outer
    });
    Value::Array(nested.unwrap_or_default())
}

fn string_or_integer(line: &[u8]) -> Value {
    match std::str::from_utf8(line) {
        Ok(text) => match text.strip_prefix(':').map(str::parse) {
            Some(Ok(integer)) => Value::Integer(integer),
            _ => Value::String(text.into()),
        },
        Err(_) => Value::Bytes(line.to_vec().into()),
    }
}
