//! Who calls, and what they may do to which locks.

mod certificate;
mod denials;
mod gate;
mod jwt;
mod key_set;
mod pattern;
mod policy;
mod signatures;
mod source;
mod tokens;

pub use self::{
    certificate::{Certificate, Unnamed},
    denials::{Denials, Denied},
    gate::{Caller, Gate, Rules, Shown, Unknown, Withdrawn},
    jwt::Jwt,
    key_set::KeySetUrl,
    policy::{Policy, Verb},
    source::{Follower, JwtSource, KeySet, Source},
    tokens::Tokens,
};
