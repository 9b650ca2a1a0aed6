//! Static files of the console, embedded in the binary: a style sheet, a script and an icon.

use axum::{http::header::CONTENT_TYPE, response::IntoResponse};

pub(super) async fn css() -> impl IntoResponse {
    let kind = "text/css; charset=utf-8";
    ([(CONTENT_TYPE, kind)], include_str!("assets/page.css"))
}

pub(super) async fn js() -> impl IntoResponse {
    let kind = "text/javascript; charset=utf-8";
    ([(CONTENT_TYPE, kind)], include_str!("assets/page.js"))
}

pub(super) async fn icon() -> impl IntoResponse {
    let kind = "image/svg+xml";
    ([(CONTENT_TYPE, kind)], include_str!("assets/icon.svg"))
}
