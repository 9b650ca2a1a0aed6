//! What the fuzz targets of the store call: replies of scripts and servers, and messages of brokers.

use std::sync::LazyLock;

use fred::{
    error::{Error, ErrorKind},
    types::Value,
};

use super::{
    answers::{self, Answer},
    cluster::{read_slots, redirect::Redirect},
    era::Era,
    owner,
    place::Address,
    refusal::Refusal,
    told::{key_of, told},
    verify::ServerInfo,
};
use crate::{lock::BrokerId, store::StoreError};

/// The prefix of the keys in the messages of the target.
const KEY_PREFIX: &str = "lh:";

static BROKER: LazyLock<BrokerId> = LazyLock::new(|| match BrokerId::parse("abcdefghij234567") {
    Some(broker) => broker,
    None => unreachable!("it has the characters of an id, and as many"),
});

/// Reads a reply as the answer of each script. The input is read as by `value`.
pub fn script_reply(input: &[u8]) {
    let reply = value(input);
    for count in [1, 2] {
        drop(answers::of_each(Ok(reply.clone()), count));
    }
    read(&reply, answers::voted);
    read(&reply, answers::acquired);
    read(&reply, answers::renewed);
    read(&reply, answers::attached);
    read(&reply, answers::released);
    read(&reply, answers::cancelled);
    read(&reply, answers::touched);
    read(&reply, answers::limit_set);
    read(&reply, answers::revoked);
    read(&reply, answers::checked);
    read(&reply, answers::state);
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
    drop(Redirect::of(&error, &from));
    let _ = Refusal::of(&error);
}

/// Reads a message of another broker.
pub fn broker_message(payload: &[u8]) {
    told(payload, KEY_PREFIX, *BROKER);
    let key = key_of(payload);
    if let Some(owner) = owner::decode(&payload[key.len()..]) {
        assert_eq!(owner::decode(&owner::encode(&owner)), Some(owner));
    }
}

fn read<T>(reply: &Value, decode: impl Fn(Value, BrokerId) -> Result<Answer<T>, StoreError>) {
    if let Ok(answer) = decode(reply.clone(), *BROKER) {
        let now_us = answer.now_ms.checked_mul(1_000);
        assert!(now_us.is_some(), "the clock of a node counts microseconds");
    }
}

/// Builds the reply that `input` spells, one element a line: `[` and `]` around an array, `:` before an
/// integer, `_` for null; every other line is a string. All inputs spell a reply.
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
    let whole = inside_out.reduce(|inner, mut outer| {
        outer.push(Value::Array(inner));
        outer
    });
    Value::Array(whole.unwrap_or_default())
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
