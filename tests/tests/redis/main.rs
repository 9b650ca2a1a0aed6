//! The Redis store on one server.

mod loads {
    mod data_loss;
    mod lost_writes;
}
mod waits {
    mod assumptions;
    mod errors;
    mod gate;
    mod moved_address;
    mod recovery;
    mod token_floor;
}

mod access;
mod cut;
mod ended_leases;
mod era;
mod errors_end;
mod errors_text;
mod half_state;
mod node;
mod record_expiry;
mod recovery_time;
mod roll_back;
mod span_limit;
mod topology;
