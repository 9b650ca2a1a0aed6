//! Authentication of callers and authorization of their requests.

mod access_control;
mod auth_limits;
mod certificate;
mod denials;
mod jwt;
mod key_set;
mod pattern;
mod policy;
mod rules_source;
mod signatures;
mod tokens;

pub use self::{
    access_control::{AccessControl, AccessRules, AuthError, Caller, PresentedCredentials},
    certificate::{Certificate, CertificateNameError},
    denials::DenialLog,
    jwt::Jwt,
    key_set::KeySetUrl,
    policy::{Policy, Verb},
    rules_source::{JwtSource, KeySet, RulesReloader, RulesSource},
    tokens::Tokens,
};
