//! Lua scripts, one for each verb, assembled from shared parts.

pub mod calls;
mod command;

use std::sync::{Arc, LazyLock};

pub use self::{
    calls::ScriptCall,
    command::{Command, Preamble},
};
use super::script::Script;
use crate::lock::{
    ATTEMPTS_MAX, BROKER_SILENT_AFTER_MS, CUT_TTL_MIN_MS, DELETION_DELAY_MS, ENTRIES_MAX,
    EXCLUSIVE_WEIGHT, EXPIRED_MAX, EXPIRED_MS, EXPIRY_DIVISOR, EXPIRY_MARGIN_MS, HOLDERS_MAX,
    IDLE_RECORD_TTL_MS, PARTIAL_RELEASE_MAX_MS, PROVISIONAL_GRANT_MS, RELEASE_SUBSCRIBERS_MAX,
    RELEASED_MAX, SPAN_MIN_MS, SPAN_RETRY_MS, TOMBSTONE_MS, TOMBSTONES_MAX, TOUCH_STALL_MS,
};

/// A command of the store, which has a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Acquire,
    Renew,
    Attach,
    Release,
    Cancel,
    Touch,
    SetLimit,
    SetClosure,
    Revoke,
    Get,
    Check,
}

#[derive(Debug, Clone)]
pub struct Scripts(Arc<[Script]>);

macro_rules! schema {
    () => {
        "3"
    };
}

/// Version of all keys and messages that brokers exchange through Redis. Brokers of one schema work
/// side by side. A broker of another schema refuses to serve, and a script rejects a record of
/// another schema.
pub const SCHEMA: &str = schema!();

/// Pairs each constant with its name.
macro_rules! named {
    ($($constant:ident),* $(,)?) => {
        [$((stringify!($constant), $constant as u64)),*]
    };
}

/// Constants of the specification that the scripts name. The scripts receive their values, because
/// each variable of Lua that a function uses makes the function more expensive to create.
const CONSTANTS: [(&str, u64); 21] = named![
    ATTEMPTS_MAX,
    BROKER_SILENT_AFTER_MS,
    CUT_TTL_MIN_MS,
    DELETION_DELAY_MS,
    ENTRIES_MAX,
    EXCLUSIVE_WEIGHT,
    EXPIRED_MAX,
    EXPIRED_MS,
    EXPIRY_DIVISOR,
    EXPIRY_MARGIN_MS,
    HOLDERS_MAX,
    IDLE_RECORD_TTL_MS,
    PARTIAL_RELEASE_MAX_MS,
    PROVISIONAL_GRANT_MS,
    RELEASED_MAX,
    RELEASE_SUBSCRIBERS_MAX,
    SPAN_MIN_MS,
    SPAN_RETRY_MS,
    TOMBSTONES_MAX,
    TOMBSTONE_MS,
    TOUCH_STALL_MS,
];

/// Text of the script that runs the function `verb`, from parts in an order in which each part uses
/// only earlier parts. Lua creates the functions of a script again in each run, so most of them are
/// created only when they are needed:
///
/// * `plain`, which each run has: the plain case of the verb, and what it uses (prelude.lua).
/// * `parts` and `last`, when a lock of the run is not a plain case (run.lua).
/// * `waiting` and `rare`, when the first of their functions is needed (state.lua).
///
/// The parts are in nested functions, which makes their functions cheaper to create. A variable
/// from outside the enclosing function costs nothing, but Lua searches the variables of the
/// enclosing function one after the other. A function may use at most 60 variables from outside
/// (upvalues), which limits where the inner functions can begin.
macro_rules! text {
    (
        flags: $flags:literal,
        verb: $verb:literal,
        plain: [$($plain:literal),* $(,)?],
        parts: [$($part:literal),* $(,)?],
        waiting: [$($waiting:literal),* $(,)?],
        rare: [$($rare:literal),* $(,)?],
        last: [$($last:literal),* $(,)?],
    ) => {
        concat!(
            "#!lua",
            $flags,
            "\nlocal SCHEMA = '",
            schema!(),
            "'\n",
            include_str!("lua/prelude.lua"),
            $(include_str!(concat!("lua/", $plain, ".lua")),)*
            "local function create_verb()\n",
            include_str!("lua/state.lua"),
            "local function parts()\n",
            include_str!("lua/holders.lua"),
            include_str!("lua/record.lua"),
            "local function inner_parts()\n",
            $(include_str!(concat!("lua/", $part, ".lua")),)*
            "function create_waiting()\n",
            include_str!("lua/messages.lua"),
            include_str!("lua/queue.lua"),
            $(include_str!(concat!("lua/", $waiting, ".lua")),)*
            "function create_rare()\n",
            include_str!("lua/holder_lists.lua"),
            include_str!("lua/rejections.lua"),
            include_str!("lua/closure.lua"),
            $(include_str!(concat!("lua/", $rare, ".lua")),)*
            "end\nend\n",
            $(include_str!(concat!("lua/", $last, ".lua")),)*
            "return ",
            $verb,
            "\nend\nreturn inner_parts()\nend\nreturn parts(), reset\nend\n",
            include_str!("lua/run.lua"),
        )
    };
}

impl Scripts {
    /// Returns the unmodified scripts.
    pub fn standard() -> Self {
        Self::edited(|_, text| text.to_owned())
    }

    /// Returns the scripts after `edit` has changed each text, in which constants have their values.
    /// Tests inject time by replacing the line that reads it.
    pub fn edited(edit: impl Fn(Verb, &str) -> String) -> Self {
        Self::create(|verb, _| edit(verb, &TEXTS[verb as usize]))
    }

    /// Returns the scripts after `edit` has changed each text, in which constants have their names.
    /// Tests introduce mistakes.
    pub fn edited_with_names(edit: impl Fn(Verb, &str) -> String) -> Self {
        Self::create(|verb, source| with_constants(&edit(verb, source)))
    }

    fn create(text: impl Fn(Verb, &str) -> String) -> Self {
        let scripts = SOURCES.map(|(verb, name, source)| {
            let mut script = Script::new(name, text(verb, source));
            if verb.accepts_batches() {
                script = script.for_several_locks();
            }
            if verb == Verb::Renew {
                script = script.before_others();
            }
            script
        });
        Self(Arc::new(scripts))
    }

    /// Returns the script of a verb.
    pub fn get(&self, verb: Verb) -> &Script {
        &self.0[verb as usize]
    }

    /// Returns all scripts, which are loaded before a node serves.
    pub fn all(&self) -> Arc<[Script]> {
        Arc::clone(&self.0)
    }
}

/// Replaces the names of constants by their values.
fn with_constants(text: &str) -> String {
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut replaced = String::with_capacity(text.len());
    for part in text.split_inclusive(|character| !is_word(character)) {
        let word = part.trim_end_matches(|character| !is_word(character));
        match CONSTANTS.iter().find(|(name, _)| *name == word) {
            Some((_, value)) => {
                replaced.push_str(&value.to_string());
                replaced.push_str(&part[word.len()..]);
            }
            None => replaced.push_str(part),
        }
    }
    replaced
}

const ACQUIRE: &str = text! {
    flags: "",
    verb: "acquire",
    plain: ["read_era", "plain_acquire"],
    parts: ["era_check", "expire", "validity", "grant", "extend", "room", "stream"],
    waiting: ["advance", "waiting"],
    rare: [
        "free", "record_pruning", "ended_leases", "lease_ends", "requests", "attachment", "unlisted", "attempts",
        "vote", "held",
    ],
    last: ["acquire"],
};
/// Text of renew. Renew, attach, release, cancel, touch and revoke run even if the server is out of
/// memory.
const RENEW: &str = text! {
    flags: " flags=allow-oom",
    verb: "renew",
    plain: ["stream", "read_era", "plain_holder", "plain_renew"],
    parts: ["era_check", "expire", "load_lease", "validity", "extend"],
    waiting: [],
    rare: ["free", "record_pruning", "ended_leases", "lease_ends", "unlisted"],
    last: ["renew"],
};
const ATTACH: &str = text! {
    flags: " flags=allow-oom",
    verb: "rare().attach",
    plain: ["stream", "read_era", "plain_holder", "plain_attach"],
    parts: ["era_check", "expire", "load_lease"],
    waiting: [],
    rare: ["validity", "free", "record_pruning", "ended_leases", "lease_ends", "attachment", "attach"],
    last: [],
};
const RELEASE: &str = text! {
    flags: " flags=allow-oom",
    verb: "release",
    plain: ["stream", "record_pruning", "plain_holder", "plain_release"],
    parts: ["read_era", "era_check", "expire", "load_lease", "free", "ended_leases", "room"],
    waiting: ["validity", "grant", "advance"],
    rare: ["lease_ends", "requests"],
    last: ["release"],
};
const CANCEL: &str = text! {
    flags: " flags=allow-oom",
    verb: "rare().cancel",
    plain: [],
    parts: ["read_era", "era_check", "expire", "room"],
    waiting: ["validity", "grant", "advance"],
    rare: ["free", "record_pruning", "ended_leases", "lease_ends", "requests", "cancel"],
    last: [],
};
const TOUCH: &str = text! {
    flags: " flags=allow-oom",
    verb: "rare().touch",
    plain: [],
    parts: ["read_era", "era_check", "expire", "room"],
    waiting: ["validity", "grant", "advance"],
    rare: ["free", "record_pruning", "ended_leases", "lease_ends", "touch"],
    last: [],
};
const SET_LIMIT: &str = text! {
    flags: "",
    verb: "rare().set_lock_limit",
    plain: [],
    parts: ["read_era", "era_check", "expire", "room"],
    waiting: ["validity", "grant", "advance"],
    rare: ["load_lease", "free", "record_pruning", "ended_leases", "lease_ends", "operator"],
    last: [],
};
const SET_CLOSURE: &str = text! {
    flags: "",
    verb: "rare().set_closure",
    plain: [],
    parts: ["read_era", "era_check", "expire", "room"],
    waiting: ["validity", "grant", "advance"],
    rare: ["load_lease", "free", "record_pruning", "ended_leases", "lease_ends", "operator"],
    last: [],
};
const REVOKE: &str = text! {
    flags: " flags=allow-oom",
    verb: "rare().revoke",
    plain: [],
    parts: ["read_era", "era_check", "expire", "room"],
    waiting: ["validity", "grant", "advance"],
    rare: ["load_lease", "free", "record_pruning", "ended_leases", "lease_ends", "operator"],
    last: [],
};
const GET: &str = text! {
    flags: " flags=no-writes",
    verb: "rare().get",
    plain: [],
    parts: ["read_era", "era_check"],
    waiting: [],
    rare: ["inspect"],
    last: [],
};
const CHECK: &str = text! {
    flags: " flags=no-writes",
    verb: "rare().check",
    plain: [],
    parts: ["read_era", "era_check"],
    waiting: [],
    rare: ["inspect"],
    last: [],
};

/// Texts of the scripts with the values of the constants, in the order of [`Verb`]. They are created
/// once, because tests start hundreds of stores.
static TEXTS: LazyLock<[String; 11]> =
    LazyLock::new(|| SOURCES.map(|(_, _, source)| with_constants(source)));

/// The verbs in the order of [`Verb`], with the names and texts of their scripts.
const SOURCES: [(Verb, &str, &str); 11] = [
    (Verb::Acquire, "acquire", ACQUIRE),
    (Verb::Renew, "renew", RENEW),
    (Verb::Attach, "attach", ATTACH),
    (Verb::Release, "release", RELEASE),
    (Verb::Cancel, "cancel", CANCEL),
    (Verb::Touch, "touch", TOUCH),
    (Verb::SetLimit, "set_limit", SET_LIMIT),
    (Verb::SetClosure, "set_closure", SET_CLOSURE),
    (Verb::Revoke, "revoke", REVOKE),
    (Verb::Get, "get", GET),
    (Verb::Check, "check", CHECK),
];

impl Verb {
    /// Returns true if the script can run for several locks at once. That applies to the frequent
    /// verbs. The other verbs are rare or may examine many waiters.
    fn accepts_batches(self) -> bool {
        matches!(
            self,
            Self::Acquire | Self::Renew | Self::Attach | Self::Release
        )
    }

    /// Returns the operation of the script that the era must permit.
    pub(super) fn era_use(self) -> EraUse {
        match self {
            Self::Acquire
            | Self::Release
            | Self::Cancel
            | Self::Touch
            | Self::SetLimit
            | Self::SetClosure
            | Self::Revoke => EraUse::Grant,
            Self::Renew | Self::Attach | Self::Check => EraUse::Confirm,
            Self::Get => EraUse::None,
        }
    }
}

/// Operation of a script that the era must permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EraUse {
    /// The script may grant locks, to the caller or to waiters.
    Grant,
    /// The script may confirm a grant whose end the store may have lost. It does all else without
    /// an era.
    Confirm,
    /// The script needs no era.
    None,
}
