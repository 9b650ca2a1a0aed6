//! The operator console: access, content, history, live updates and layout.

mod alone {
    mod load;
}
mod loads {
    mod browser;
    mod fits;
}

mod access;
mod assets;
mod closures;
mod content;
mod history;
mod live;
mod semaphores;
