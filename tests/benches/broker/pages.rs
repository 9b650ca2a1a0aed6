//! Generated blocks of the documentation, and its charts.

use std::{fs, io};

use leasehold_tests::repository::paths::repository_root;

/// Argument that writes the figures into the docs.
const WRITE: &str = "--write";

/// Returns true if the figures of this run replace those of the docs.
pub(crate) fn is_writing() -> bool {
    std::env::args().any(|arg| arg == WRITE)
}

/// Replaces the text between `<!-- block -->` and `<!-- /block -->` of a page.
pub(crate) fn write_block(page: &str, block: &str, text: &str) -> io::Result<()> {
    let path = repository_root().join(page);
    let old = fs::read_to_string(&path)?;
    let [begin, end] =
        [block.to_owned(), format!("/{block}")].map(|mark| format!("<!-- {mark} -->\n"));
    let parts = old.split_once(&begin);
    let parts = parts.and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) =
        parts.ok_or_else(|| io::Error::other(format!("{page} has no block {block}")))?;
    fs::write(
        path,
        format!("{before}{begin}\n{}\n\n{end}{after}", text.trim_end()),
    )
}

/// Writes a chart into `docs/images`.
pub(crate) fn write_image(name: &str, svg: &str) -> io::Result<()> {
    fs::write(repository_root().join("docs/images").join(name), svg)
}
