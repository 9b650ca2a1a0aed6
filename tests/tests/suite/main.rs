//! The common suite: behaviours that every client shares, run with the client of each language.

mod loads {
    mod doors;
    mod doors_tokens;
    mod once_per_period;
    mod together;
}

mod go;
mod java;
mod python;
mod rust;
mod typescript;
