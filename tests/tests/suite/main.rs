//! The behaviours that every client shares, played by the client of each language.

mod loads {
    mod doors;
    mod doors_tokens;
    mod together;
}
mod waits {
    mod go;
    mod rust;
    mod typescript;
}

mod java;
mod python;
