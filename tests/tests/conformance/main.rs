//! Semantics of locks on every store, and comparison of the scripts with the specification.

mod alone {
    mod blocking;
}
mod loads {
    mod differential;
}

mod redlock;
mod stores;
