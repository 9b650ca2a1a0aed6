//! Brokers in virtual time on a faulty store, with clients that follow random plans.

mod loads {
    mod seeds;
}
