//! Documentation of log messages. Every message at level warn or error is in docs/operating.md.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Minimum length of a text between placeholders. Shorter texts are not compared.
const LENGTH_MIN: usize = 3;

#[test]
fn every_warning_is_in_the_docs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/operating.md")).expect("the page");
    let page = collapse_whitespace(&page.replace(['`', '*', '\\'], ""));
    let mut texts = Vec::new();
    for file in sources(&root.join("server/src")) {
        let code = fs::read_to_string(&file).expect("a source");
        for text in ["warn!(", "error!("]
            .iter()
            .flat_map(|what| logged(&code, what))
        {
            texts.push((file.clone(), text));
        }
    }
    assert!(texts.len() > 20, "{texts:?}");
    for (file, text) in texts {
        for piece in literal_parts(&text) {
            assert!(page.contains(&piece), "{}: {piece}", file.display());
        }
    }
}

/// Returns the messages of all uses of this macro: the last string of each.
fn logged(code: &str, what: &str) -> Vec<String> {
    let calls = code.match_indices(what).filter(|(at, _)| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    });
    let bodies = calls.map(|(at, what)| {
        let body = &code[at + what.len()..];
        &body[..body.find(");").or(body.find(")\n")).expect("an end")]
    });
    let last = bodies.filter_map(|body| {
        let strings = body.split('"').skip(1).step_by(2);
        strings.filter(|text| text.contains([' ', '{'])).last()
    });
    last.map(str::to_owned).collect()
}

/// Returns the texts between the placeholders.
fn literal_parts(text: &str) -> Vec<String> {
    let text = collapse_whitespace(text);
    let ends = text.split('{').map(|part| match part.split_once('}') {
        Some((_placeholder, rest)) => rest,
        None => part,
    });
    let pieces = ends.map(|piece| {
        piece
            .trim_matches([' ', '.', ':', '(', ')', ','])
            .to_owned()
    });
    pieces.filter(|piece| piece.len() >= LENGTH_MIN).collect()
}

fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

#[test]
fn the_reader_of_warnings_reads() {
    let code = r#"
        tracing::warn!(target: "audit", lock = lock.to_string(), "an operator has");
        warn!("{name} is lost: {reason}");
        my_warn!("not this one");
    "#;
    assert_eq!(
        logged(code, "warn!("),
        ["an operator has", "{name} is lost: {reason}"]
    );
    assert_eq!(literal_parts("{name} is lost: {reason}"), ["is lost"]);
}
