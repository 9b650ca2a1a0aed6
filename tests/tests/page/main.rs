//! The operators' page.

mod alone {
    mod load;
}
mod loads {
    mod browser;
    mod fits;
}

mod access;
mod assets;
mod content;
mod history;
mod live;
