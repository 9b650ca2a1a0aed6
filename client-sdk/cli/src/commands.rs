//! The commands but for `run`, one file for each kind.

mod about;
mod hold;
mod lease;
mod look;
mod operate;

pub(crate) use self::{
    about::{completion, ping, version},
    hold::{give_back, hold},
    lease::{acquire, release, renew},
    look::{check_token, get, list, watch},
    operate::force_release,
};
