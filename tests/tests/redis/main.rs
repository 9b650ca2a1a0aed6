//! The Redis store on one server.

mod loads {
    mod data_loss;
}
mod waits {
    mod errors;
    mod gate;
}

mod access;
mod cut;
mod era;
mod errors_end;
mod errors_text;
mod half_state;
mod node;
mod topology;
