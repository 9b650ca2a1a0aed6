//! The semantics of locks on every store, and the scripts against the specification.

mod loads {
    mod differential;
}

mod redlock;
mod stores;
