//! Keeps the shape of the code: who may import whom, how long a file may be, and which words.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A place in the server and what the code there may not name.
struct Arrow {
    /// Modules under `server/src`; `lock` covers `lock.rs` and `lock/**`.
    modules: &'static [&'static str],
    /// Crates that must not be named.
    crates: &'static [&'static str],
    /// Modules of the server that must not be named.
    server_modules: &'static [&'static str],
}

const ARROWS: [Arrow; 6] = [
    Arrow {
        modules: &["lock"],
        crates: &[
            "async_trait",
            "futures",
            "tokio",
            "tokio_stream",
            "tokio_util",
        ],
        server_modules: &[
            "broker", "config", "grpc", "leases", "serve", "shutdown", "status", "store",
        ],
    },
    Arrow {
        modules: &["lock", "store"],
        crates: &[],
        server_modules: &[
            "broker", "config", "grpc", "leases", "serve", "shutdown", "status", "waiters",
        ],
    },
    Arrow {
        modules: &["broker", "waiters", "leases"],
        crates: &[],
        server_modules: &[
            "config",
            "grpc",
            "serve",
            "shutdown",
            "status",
            "store::memory",
            "store::redis",
        ],
    },
    Arrow {
        modules: &["store/memory"],
        crates: &[],
        server_modules: &["store::redis"],
    },
    Arrow {
        modules: &["store/redis"],
        crates: &[],
        server_modules: &["store::memory", "store::redlock"],
    },
    Arrow {
        modules: &["store/redlock"],
        crates: &[],
        server_modules: &["store::memory"],
    },
];

/// Crates that only these modules of the server may name.
const HOMES: [(&str, &[&str]); 12] = [
    ("askama", &["page"]),
    ("axum", &["page", "serve"]),
    ("fred", &["store/redis"]),
    ("clap", &["config"]),
    ("notify", &["reload"]),
    ("opentelemetry", &["trace"]),
    ("opentelemetry_otlp", &["trace"]),
    ("opentelemetry_sdk", &["trace"]),
    ("tonic", EDGE),
    ("prost", EDGE),
    ("prost_types", EDGE),
    ("leasehold_proto", &["grpc", "page", "serve", "transport"]),
];

/// Where gRPC is spoken.
const EDGE: &[&str] = &["grpc", "serve", "transport"];

/// Words that this project does not use, in halves so that this list does not find itself.
/// Those in the first list are names with a settled other term; matched without case.
const UNUSED_TERMS: [(&str, &str); 8] = [
    ("ses", "sion"),
    ("man", "ager"),
    ("hel", "per"),
    ("hel", "pers"),
    ("ut", "il"),
    ("ut", "ils"),
    ("sub", "agent"),
    ("L", "LM"),
];
/// Found anywhere in a line, with case.
const UNUSED_TEXT: [(&str, &str); 6] = [
    ("/wo", "rk/"),
    ("../sha", "red"),
    ("DES", "IGN"),
    ("brief-", "common"),
    ("Clau", "de"),
    ("allow(cl", "ippy"),
];

#[test]
fn arrows_point_inwards() {
    let root = workspace();
    let mut wrong = Vec::new();
    for file in files(&root.join("server/src"), &["rs"]) {
        let module = module_of(&root, &file);
        let code = code_of(&read(&file));
        for (name, homes) in HOMES {
            if names_path(&code, name) && !homes.iter().any(|home| covers(home, &module)) {
                wrong.push(format!("{module} names {name}"));
            }
        }
        let arrows = ARROWS
            .iter()
            .filter(|arrow| arrow.modules.iter().any(|m| covers(m, &module)));
        for arrow in arrows {
            let crates = arrow.crates.iter().filter(|name| names_path(&code, name));
            wrong.extend(crates.map(|name| format!("{module} names {name}")));
            let imports = crate_imports(&code);
            let modules = arrow.server_modules.iter().filter(|target| {
                imports
                    .iter()
                    .any(|import| covers(&target.replace("::", "/"), import))
            });
            wrong.extend(modules.map(|target| format!("{module} names crate::{target}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_short_and_say_what_they_are() {
    let root = workspace();
    let mut wrong = Vec::new();
    for file in files(&root, &["rs", "lua"]) {
        let text = read(&file);
        let name = shown(&root, &file);
        let is_lua = name.ends_with(".lua");
        let lines_max = match name.as_str() {
            "server/src/main.rs" => 60,
            "server/src/config.rs" => 250,
            _ if is_lua => 80,
            _ => 400,
        };
        let lines = text.lines().count();
        if lines > lines_max {
            wrong.push(format!("{name} has {lines} lines, {lines_max} at most"));
        }
        let header = if is_lua { "-- " } else { "//! " };
        // A script that stands alone names its engine and its flags before anything else.
        let first = text.lines().find(|line| !line.starts_with("#!lua"));
        if !first.is_some_and(|line| line.starts_with(header)) {
            wrong.push(format!("{name} does not begin with a line of `{header}`"));
        }
        if name.ends_with("/mod.rs") {
            wrong.push(format!("{name}: a module's file has the module's name"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn text_keeps_to_the_words() {
    let root = workspace();
    let mut wrong = Vec::new();
    let kinds = [
        "rs", "lua", "proto", "md", "toml", "sh", "yaml", "yml", "run", "Makefile",
    ];
    for file in files(&root, &kinds) {
        for (number, line) in read(&file).lines().enumerate() {
            let found = unused_words(line);
            let name = shown(&root, &file);
            wrong.extend(
                found
                    .iter()
                    .map(|word| format!("{name}:{}: {word}", number + 1)),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn unused_words(line: &str) -> Vec<String> {
    let lower = line.to_lowercase();
    // A hyphen joins, so that the names of crates are words of their own.
    let words: Vec<&str> = lower.split(|c: char| !is_name(c) && c != '-').collect();
    let terms = UNUSED_TERMS
        .iter()
        .map(|(a, b)| format!("{a}{b}").to_lowercase());
    let texts = UNUSED_TEXT.iter().map(|(a, b)| format!("{a}{b}"));
    terms
        .filter(|term| words.contains(&term.as_str()))
        .chain(texts.filter(|text| line.contains(text.as_str())))
        .collect()
}

fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the tests crate lies in the workspace")
        .to_owned()
}

/// Every file below `root` whose name ends in one of `endings`, but nothing generated.
fn files(root: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).expect("a readable directory") {
        let path = entry.expect("a directory entry").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if !["target", "node_modules", ".git"].contains(&name.as_str()) {
                found.extend(files(&path, endings));
            }
        } else if endings.contains(&name.rsplit('.').next().unwrap_or(&name)) {
            found.push(path);
        }
    }
    found
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn shown(root: &Path, file: &Path) -> String {
    file.strip_prefix(root)
        .expect("a file of the workspace")
        .to_string_lossy()
        .into_owned()
}

/// `server/src/store/redis.rs` is `store/redis`.
fn module_of(root: &Path, file: &Path) -> String {
    let name = shown(&root.join("server/src"), file);
    name.trim_end_matches(".rs").to_owned()
}

fn covers(place: &str, module: &str) -> bool {
    module
        .strip_prefix(place)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The text without line comments.
fn code_of(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Whether `name` occurs as the beginning of a path, in code or in a `use` line.
fn names_path(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + name.len()..];
        let in_use = code[..at].trim_end().ends_with("use") && after.starts_with([';', ' ']);
        !before.is_some_and(|c| is_name(c) || c == ':') && (after.starts_with("::") || in_use)
    })
}

/// What follows each `crate::`, groups in braces taken apart: `store/redis/scripts`, ...
fn crate_imports(code: &str) -> Vec<String> {
    let starts = code.match_indices("crate::");
    starts
        .flat_map(|(at, prefix)| paths(&code[at + prefix.len()..]))
        .collect()
}

/// The paths at the beginning of `text`, to the depth that its first braces open.
fn paths(text: &str) -> Vec<String> {
    let end = text
        .find(|c: char| !is_name(c) && c != ':')
        .unwrap_or(text.len());
    let path = text[..end].trim_matches(':').replace("::", "/");
    if !text[end..].starts_with('{') {
        return vec![path];
    }
    let inner = group(&text[end + 1..]);
    let within = inner.iter().flat_map(|part| paths(part.trim()));
    within
        .map(|part| format!("{path}/{part}").trim_matches('/').to_owned())
        .collect()
}

/// Splits a brace group, from behind its opening brace, at its own commas.
fn group(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&text[from..at]);
                return parts;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn the_reader_of_imports_reads() {
    let code = "use crate::{lock::{Lease, Ttl}, store::redis::Node};\ncrate::broker::Broker::new()";
    let found = crate_imports(code);
    assert_eq!(
        found,
        [
            "lock/Lease",
            "lock/Ttl",
            "store/redis/Node",
            "broker/Broker/new"
        ]
    );
    assert!(names_path("use fred::clients::Client;", "fred"));
    assert!(names_path("let x = fred::Client::new();", "fred"));
    assert!(names_path("use tonic;", "tonic"));
    assert!(!names_path("alfred::x tonic_x::y a::tonic::z", "fred"));
    assert!(!names_path("a::tonic::z tonic_x::y", "tonic"));
    let halves = UNUSED_TERMS[0];
    assert_eq!(
        unused_words(&format!("a {}{} ends", halves.0, halves.1)).len(),
        1
    );
    assert!(unused_words("use tokio_util; tokio-util = 1").is_empty());
}
