//! Assets of the operator console: small, and without external resources.

use std::fs;

use leasehold_tests::{repository::paths::repository_root, scale::print_figures};

const ASSETS_MAX: usize = 150 * 1_024;
const IMAGE_MAX: u64 = 150_000;

#[test]
fn assets_are_small_and_load_nothing_external() {
    let server = repository_root().join("server");
    let (mut size, mut files) = (0, 0);
    for folder in ["templates", "src/console/assets"] {
        for entry in fs::read_dir(server.join(folder)).expect("a folder") {
            let file = entry.expect("an entry").path();
            let text = fs::read_to_string(&file).expect("text");
            let names = addresses(&text);
            assert!(names.is_empty(), "{}: {names:?}", file.display());
            (size, files) = (size + text.len(), files + 1);
        }
    }
    print_figures(&format!("page: embedded: files={files} bytes={size}"));
    assert!(
        files >= 10 && size < ASSETS_MAX,
        "{files} files of {size} bytes"
    );
}

/// Returns the external addresses in the text, except the name of the SVG namespace, which browsers
/// do not fetch.
fn addresses(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| c.is_whitespace() || "\"'`()<>".contains(c));
    let is_one = |word: &&str| {
        (word.contains("://") || word.starts_with("//") && word.len() > 2)
            && *word != "http://www.w3.org/2000/svg"
    };
    words.filter(is_one).collect()
}

#[test]
fn addresses_are_found() {
    let text = "// a comment <img src=\"//cdn.test/x\"> url('https://x.test/y') /own/path";
    assert_eq!(addresses(text), ["//cdn.test/x", "https://x.test/y"]);
}

#[test]
fn the_image_of_the_page_is_small() {
    let image = repository_root().join("docs/images/operators-page.png");
    let size = fs::metadata(&image).expect("it is there").len();
    assert!(size <= IMAGE_MAX, "{size}");
}
