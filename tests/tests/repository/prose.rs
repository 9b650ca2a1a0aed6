//! Checks the language of comments and documents: doc comments name their item first, and words
//! that have a standard term are rare.

use std::collections::BTreeMap;

use leasehold_tests::{
    repository::{import_graph::read_file, paths::repository_root},
    scale::print_figures,
};

use crate::source_files::{files, shown};

/// Beginnings that describe an item without naming it.
const OPENINGS: [&str; 12] = [
    "Who", "What", "Whether", "Of", "How", "That", "As", "By", "Where", "Which", "Why", "The same",
];
/// Words for which `docs/glossary.md` has a term.
const UNUSUAL: [&str; 8] = [
    "told",
    "nobody",
    "somebody",
    "whoever",
    "anew",
    "any more",
    "deeds",
    "give back",
];
/// Unusual words in 1,000 words of doc comments.
const COMMENTS_MAX: f64 = 2.0;
/// Unusual words in 1,000 words of documents.
const DOCUMENTS_MAX: f64 = 1.0;

/// A doc comment without its markers.
struct Comment {
    line: usize,
    text: String,
}

/// Words and unusual words that were counted.
#[derive(Default)]
struct Count {
    words: usize,
    unusual: BTreeMap<&'static str, usize>,
}

#[test]
fn doc_comments_name_their_item_first() {
    let mut wrong = Vec::new();
    for (file, comment) in comments() {
        let opening = OPENINGS.iter().find(|opening| {
            let rest = comment.text.strip_prefix(**opening);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
        });
        if opening.is_some() {
            let first = comment.text.lines().next().unwrap_or_default();
            wrong.push(format!("{file}:{}: {first}", comment.line));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} doc comments do not begin with a verb or with what their item is:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn unusual_words_are_rare() {
    let mut in_comments = Count::default();
    for (_, comment) in comments() {
        in_comments.add(&comment.text);
    }
    let mut in_documents = Count::default();
    for file in files(repository_root(), &["md"]) {
        in_documents.add(&read_file(&file));
    }
    print_figures(&format!(
        "prose: {:.2} unusual words in 1,000 of doc comments, {:.2} in 1,000 of documents",
        in_comments.per_thousand(),
        in_documents.per_thousand()
    ));
    assert!(in_comments.words > 10_000 && in_documents.words > 10_000);
    for (what, count, max) in [
        ("doc comments", in_comments, COMMENTS_MAX),
        ("documents", in_documents, DOCUMENTS_MAX),
    ] {
        assert!(
            count.per_thousand() <= max,
            "{:.2} unusual words in 1,000 of {what}, at most {max} (docs/glossary.md has the terms): {:?}",
            count.per_thousand(),
            count.unusual
        );
    }
}

#[test]
fn comments_are_found_with_their_lines() {
    let found = |comments: Vec<Comment>| -> Vec<(usize, String)> {
        let comments = comments.into_iter();
        comments
            .map(|comment| (comment.line, comment.text))
            .collect()
    };
    assert_eq!(
        found(lines_of(
            "//! A\n//! b.\n\nfn f() {}\n    /// C.\n",
            &["///", "//!"]
        )),
        [(1, "A\nb.".to_owned()), (5, "C.".to_owned())]
    );
    assert_eq!(
        found(blocks_of(
            "int a;\n/**\n * A\n * b.\n */\n/** C. */",
            "/**",
            "*/"
        )),
        [(2, "A\nb.".to_owned()), (6, "C.".to_owned())]
    );
}

#[test]
fn quotations_do_not_count() {
    let mut count = Count::default();
    count.add("A caller is Told `nobody` of \"somebody\".\n```\nanew\n```\nIt is not any\nmore.");
    assert_eq!(
        count.unusual,
        BTreeMap::from([("told", 1), ("any more", 1)])
    );
}

impl Count {
    fn add(&mut self, text: &str) {
        let words = words_of(&without_quotations(text));
        self.words += words.len();
        let joined = format!(" {} ", words.join(" "));
        for unusual in UNUSUAL {
            let found = joined.matches(&format!(" {unusual} ")).count();
            if found > 0 {
                *self.unusual.entry(unusual).or_default() += found;
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of words are small")]
    fn per_thousand(&self) -> f64 {
        let unusual: usize = self.unusual.values().sum();
        unusual as f64 * 1_000.0 / self.words as f64
    }
}

/// Returns the words of a text in lower case, without punctuation.
fn words_of(text: &str) -> Vec<String> {
    text.split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Removes code, and text between quotation marks.
fn without_quotations(text: &str) -> String {
    let prose: String = text.split("```").step_by(2).collect();
    let prose: String = prose.split('`').step_by(2).collect();
    prose.split('"').step_by(2).collect()
}

/// Returns the doc comments of the project with their files.
fn comments() -> Vec<(String, Comment)> {
    let mut found = Vec::new();
    for file in files(
        repository_root(),
        &["go", "java", "lua", "proto", "py", "rs", "ts"],
    ) {
        let (name, text) = (shown(repository_root(), &file), read_file(&file));
        let comments = match name.rsplit('.').next().unwrap_or_default() {
            "go" | "proto" => lines_of(&text, &["//"]),
            "lua" => lines_of(&text, &["--"]),
            "py" => blocks_of(&text, "\"\"\"", "\"\"\""),
            "rs" => lines_of(&text, &["///", "//!"]),
            _ => blocks_of(&text, "/**", "*/"),
        };
        found.extend(comments.into_iter().map(|comment| (name.clone(), comment)));
    }
    assert!(found.len() > 5_000, "only {} comments", found.len());
    found
}

/// Returns the blocks of lines that begin with one of the markers.
fn lines_of(text: &str, markers: &[&str]) -> Vec<Comment> {
    let mut comments: Vec<Comment> = Vec::new();
    let mut is_in_comment = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let text = markers.iter().find_map(|marker| line.strip_prefix(marker));
        let Some(text) = text else {
            is_in_comment = false;
            continue;
        };
        let text = text.strip_prefix(' ').unwrap_or(text);
        match comments.last_mut().filter(|_| is_in_comment) {
            Some(comment) => {
                comment.text.push('\n');
                comment.text.push_str(text);
            }
            None => comments.push(Comment {
                line: number + 1,
                text: text.to_owned(),
            }),
        }
        is_in_comment = true;
    }
    comments
}

/// Returns the texts between the two markers, without the asterisks at the beginnings of lines.
fn blocks_of(text: &str, begin: &str, end: &str) -> Vec<Comment> {
    let mut comments = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(begin) {
        let line = text[..text.len() - after.len()].lines().count();
        let (comment, behind) = after.split_once(end).unwrap_or((after, ""));
        let lines = comment.lines().map(|line| {
            let line = line.trim();
            line.strip_prefix('*').unwrap_or(line).trim_start()
        });
        let text: Vec<_> = lines.collect();
        comments.push(Comment {
            line,
            text: text.join("\n").trim().to_owned(),
        });
        rest = behind;
    }
    comments
}
