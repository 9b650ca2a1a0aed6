//! Model of clients and an adversary around the specification of a lock.

mod loads {
    mod exhaustive;
    mod random;
    mod scripts;
}
