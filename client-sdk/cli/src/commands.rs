//! All commands except `run`.

mod admin;
mod closure;
mod hold;
mod info;
mod inspect;
mod lease;
mod limit;

pub(crate) use self::{
    admin::force_release,
    closure::{close, open, reserve},
    hold::{hold, release_guard},
    info::{completion, ping, version},
    inspect::{check_token, get, list, watch},
    lease::{acquire, release, renew},
    limit::set_limit,
};
