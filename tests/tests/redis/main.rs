//! The Redis store on one server.

mod loads {
    mod data_loss;
    mod errors_end;
}

mod access;
mod cut;
mod era;
mod errors;
mod errors_text;
mod gate;
mod half_state;
mod node;
mod topology;
