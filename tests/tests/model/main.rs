//! Model of clients and an adversary around the specification of a lock.

mod late_grant;
mod recovery_rules;
mod loads {
    mod exhaustive;
    mod hedge;
    mod random;
    mod scripts;
}
