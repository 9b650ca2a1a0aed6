//! All commands except `run`.

mod admin;
mod hold;
mod info;
mod inspect;
mod lease;

pub(crate) use self::{
    admin::force_release,
    hold::{hold, release_guard},
    info::{completion, ping, version},
    inspect::{check_token, get, list, watch},
    lease::{acquire, release, renew},
};
