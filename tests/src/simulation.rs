//! Simulation of real brokers in virtual time, on a store that delays, loses and repeats messages.
//!
//! A plan follows from a seed: what each client does, and which faults occur. The run of a plan is
//! a function of the plan: it uses one thread, one clock and one source of random numbers. Its
//! history is judged like that of real processes.

pub mod client;
pub mod plan;
pub mod run;
pub mod shrink;
pub mod store;
pub mod world;
