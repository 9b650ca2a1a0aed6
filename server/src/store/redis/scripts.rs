//! The scripts: one for each verb, of the parts that it needs.

mod command;

use std::sync::Arc;

pub use self::command::{Command, Preamble, Tells, Vote};
use super::script::Script;

/// One script a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Acquire,
    Renew,
    Attach,
    Release,
    Cancel,
    Touch,
    SetLimit,
    Revoke,
    Get,
    Check,
}

/// The scripts of all verbs.
#[derive(Debug, Clone)]
pub struct Scripts(Arc<[Script]>);

macro_rules! schema {
    () => {
        "1"
    };
}

/// The version of all that brokers keep in Redis and tell each other through it. Brokers of one schema
/// work side by side; one of another refuses to serve, and a script to read the record.
pub const SCHEMA: &str = schema!();

/// A verb's text: the parts that it needs, in an order in which each uses only earlier ones. They stand in
/// two functions, one in the other, since what is declared around a function costs its inner functions nothing when
/// they are made: Lua seeks what is declared beside them one after the other. A function may use at most 60 names
/// from around it, so not every place for the second one will do.
macro_rules! text {
    ($flags:literal, $verb:literal, [$($outer:literal),*], [$($part:literal),*]) => {
        concat!(
            "#!lua",
            $flags,
            "\nlocal SCHEMA = '",
            schema!(),
            "'\n",
            include_str!("lua/prelude.lua"),
            "local function parts()\n",
            include_str!("lua/record.lua"),
            include_str!("lua/watch.lua"),
            include_str!("lua/queue.lua"),
            include_str!("lua/holders.lua"),
            $(include_str!(concat!("lua/", $outer, ".lua")),)*
            "local function inner_parts()\n",
            $(include_str!(concat!("lua/", $part, ".lua")),)*
            include_str!(concat!("lua/", $verb, ".lua")),
            "return verb\nend\nreturn inner_parts()\nend\nlocal verb = parts()\n",
            include_str!("lua/run.lua")
        )
    };
}

/// A verb that lets the line move, with what it needs besides.
macro_rules! granting {
    ($flags:literal, $verb:literal, [$($part:literal),*]) => {
        text!($flags, $verb, ["tell"], ["grant", "ended", "expire", "closed", "line", "advance" $(, $part)*])
    };
}

impl Scripts {
    /// The scripts as they are.
    pub fn standard() -> Self {
        Self::edited(|_, text| text.to_owned())
    }

    /// The scripts with every text edited: tests inject time by replacing the one line that reads it.
    pub fn edited(edit: impl Fn(Verb, &str) -> String) -> Self {
        let scripts = TEXTS.map(|(verb, name, text)| {
            let script = Script::new(name, edit(verb, text));
            match verb.takes_several() {
                true => script.of_several(),
                false => script,
            }
        });
        Self(Arc::new(scripts))
    }

    /// The script of a verb.
    pub fn get(&self, verb: Verb) -> &Script {
        &self.0[verb as usize]
    }

    /// All of them, to be loaded before a node serves.
    pub fn all(&self) -> Arc<[Script]> {
        Arc::clone(&self.0)
    }
}

const ACQUIRE: &str = granting!(
    "",
    "acquire",
    [
        "calls",
        "shown",
        "tombstones",
        "entries",
        "enter",
        "stream",
        "reply",
        "vote",
        "told"
    ]
);
/// Renew, attach, release, cancel, touch and revoke run even when the server is out of memory.
const RENEW: &str = text!(
    " flags=allow-oom",
    "renew",
    ["tell"],
    ["grant", "ended", "expire", "closed", "stream"]
);
const ATTACH: &str = text!(
    " flags=allow-oom",
    "attach",
    ["tell"],
    ["grant", "ended", "expire", "closed", "stream"]
);
const RELEASE: &str = granting!(
    " flags=allow-oom",
    "release",
    ["tombstones", "entries", "stream", "told"]
);
const CANCEL: &str = granting!(
    " flags=allow-oom",
    "cancel",
    ["calls", "tombstones", "entries", "told"]
);
const TOUCH: &str = granting!(" flags=allow-oom", "touch", ["calls"]);
const SET_LIMIT: &str = granting!("", "set_limit", []);
const REVOKE: &str = granting!(" flags=allow-oom", "revoke", ["told"]);
const GET: &str = text!(" flags=no-writes", "get", [], ["shown"]);
const CHECK: &str = text!(" flags=no-writes", "check", [], ["closed"]);

/// In the order of [`Verb`].
const TEXTS: [(Verb, &str, &str); 10] = [
    (Verb::Acquire, "acquire", ACQUIRE),
    (Verb::Renew, "renew", RENEW),
    (Verb::Attach, "attach", ATTACH),
    (Verb::Release, "release", RELEASE),
    (Verb::Cancel, "cancel", CANCEL),
    (Verb::Touch, "touch", TOUCH),
    (Verb::SetLimit, "set_limit", SET_LIMIT),
    (Verb::Revoke, "revoke", REVOKE),
    (Verb::Get, "get", GET),
    (Verb::Check, "check", CHECK),
];

impl Verb {
    /// Whether it is run for several locks at once. Those that are asked for often are; one that may grant
    /// or look at many calls is not.
    fn takes_several(self) -> bool {
        matches!(
            self,
            Self::Acquire | Self::Renew | Self::Attach | Self::Release
        )
    }

    /// What the script does that the era must allow.
    pub(super) fn era_use(self) -> EraUse {
        match self {
            Self::Acquire
            | Self::Release
            | Self::Cancel
            | Self::Touch
            | Self::SetLimit
            | Self::Revoke => EraUse::Grants,
            Self::Renew | Self::Attach | Self::Check => EraUse::Confirms,
            Self::Get => EraUse::Nothing,
        }
    }
}

/// What a script does that the era must allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EraUse {
    /// It may grant, to whoever calls or to those who wait.
    Grants,
    /// It may confirm a grant that the store may have lost the end of. All else it does without an era.
    Confirms,
    /// Nothing.
    Nothing,
}
