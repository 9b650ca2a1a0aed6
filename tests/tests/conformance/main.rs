//! The semantics of locks on every store, and the scripts against the specification.

mod alone {
    mod blocking;
}
mod loads {
    mod differential;
}

mod redlock;
mod stores;
