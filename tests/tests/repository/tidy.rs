//! Checks the imports of modules, the first lines of files and the suppression of lints. Sizes are
//! listed as warnings only.

use std::collections::BTreeSet;

use leasehold_tests::{
    repository::{
        import_graph::{ImportGraph, is_path_root, read_file, strip_comments_and_tests, top_level},
        paths::repository_root,
    },
    scale::print_warning,
};

use crate::source_files::{files, shown};

/// Modules of the server by layer, beginning with the innermost. A module must not import a module
/// of a later layer, directly or through another module.
const LAYERS: [&[&str]; 10] = [
    &[
        "address",
        "browsers",
        "lock",
        "file_watch",
        "random",
        "rate_limit",
        "runtime",
        "shutdown",
        "time",
    ],
    &["recent_events", "trace"],
    &["store"],
    &["metrics", "telemetry"],
    &["access", "quotas", "transport"],
    &["broker", "request"],
    &["config"],
    &["inspection"],
    &["grpc"],
    &[
        "fuzzing", "console", "commands", "reload", "serve", "main", "lib",
    ],
];

/// Modules that must not import the listed modules of the same or an inner layer, directly or
/// through another module.
const SEPARATE: [(&[&str], &[&str]); 5] = [
    (
        &["broker"],
        &["store/memory", "store/redis", "store/redlock"],
    ),
    (&["store/memory"], &["store/redis", "store/redlock"]),
    (&["store/redis"], &["store/memory", "store/redlock"]),
    (&["store/redlock"], &["store/memory"]),
    (&["console"], &["grpc", "serve", "commands", "reload"]),
];

/// Modules that must not name these crates.
const WITHOUT_CRATES: [(&str, &[&str]); 1] = [(
    "lock",
    &[
        "async_trait",
        "futures",
        "tokio",
        "tokio_stream",
        "tokio_util",
    ],
)];

/// Crates that only these modules of the server may name.
const HOMES: [(&str, &[&str]); 12] = [
    ("askama", &["console"]),
    ("axum", &["browsers", "console", "serve"]),
    ("fred", &["store/redis"]),
    ("clap", &["config"]),
    ("notify", &["reload"]),
    ("opentelemetry", &["trace"]),
    ("opentelemetry_otlp", &["trace"]),
    ("opentelemetry_sdk", &["trace"]),
    ("tonic", EDGE),
    ("prost", EDGE),
    ("prost_types", EDGE),
    (
        "leasehold_proto",
        &["config", "grpc", "serve", "telemetry", "transport"],
    ),
];

/// Modules that use gRPC.
const EDGE: &[&str] = &["grpc", "serve", "transport"];

/// Number of lines above which a file is listed as a warning.
const FILE_LINES: usize = 800;
/// Lint that a function of more than 100 lines must expect, with a reason.
const LONG_FUNCTION: &str = "clippy::too_many_lines";

#[test]
fn imports_lead_inwards() {
    let graph = server_imports();
    let mut wrong = Vec::new();
    for (index, layer) in LAYERS.iter().enumerate() {
        let outer: Vec<_> = LAYERS[index + 1..].concat();
        wrong.extend(chains(&graph, layer, &outer));
    }
    for (modules, others) in SEPARATE {
        wrong.extend(chains(&graph, modules, others));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Modules of one layer may import each other's modules, but in one direction only.
#[test]
fn imports_have_no_cycles() {
    let graph = server_imports().top_level_modules();
    let cycles = graph.cycles();
    assert!(cycles.is_empty(), "modules import each other: {cycles:?}");
}

#[test]
fn every_module_has_a_layer() {
    let graph = server_imports();
    let of_code: BTreeSet<_> = graph.modules().map(|module| top_level(module)).collect();
    let of_layers: BTreeSet<_> = LAYERS.concat().into_iter().collect();
    assert_eq!(of_code, of_layers);
    let named = SEPARATE
        .iter()
        .flat_map(|(modules, others)| modules.iter().chain(*others));
    let homes = HOMES.iter().flat_map(|(_, homes)| homes.iter());
    for name in named.chain(homes).chain(EDGE) {
        let exists = graph.modules().any(|module| covers(name, module));
        assert!(exists, "{name} is no module of the server");
    }
}

#[test]
fn crates_stay_in_their_modules() {
    let source = repository_root().join("server/src");
    let mut wrong = Vec::new();
    for file in files(&source, &["rs"]) {
        let module = shown(&source, &file).trim_end_matches(".rs").to_owned();
        let code = strip_comments_and_tests(&read_file(&file));
        for (name, homes) in HOMES {
            if is_path_root(&code, name) && !homes.iter().any(|home| covers(home, &module)) {
                wrong.push(format!("{module} names {name}"));
            }
        }
        for (place, crates) in WITHOUT_CRATES {
            let named = crates.iter().filter(|name| is_path_root(&code, name));
            let here = named.filter(|_| covers(place, &module));
            wrong.extend(here.map(|name| format!("{module} names {name}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_say_what_they_are() {
    let root = repository_root();
    let mut wrong = Vec::new();
    for file in files(root, &["rs", "lua"]) {
        let name = shown(root, &file);
        let header = if name.ends_with(".lua") {
            "-- "
        } else {
            "//! "
        };
        // A script that is loaded on its own has a line with its engine and flags above the
        // comment.
        let text = read_file(&file);
        let first = text.lines().find(|line| !line.starts_with("#!lua"));
        if !first.is_some_and(|line| line.starts_with(header)) {
            wrong.push(format!("{name} does not begin with a line of `{header}`"));
        }
        if name.ends_with("/mod.rs") {
            wrong.push(format!(
                "{name}: name the file of a module after the module"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `#[allow]` hides a lint also where it no longer applies; `#[expect]` with a reason does not.
#[test]
fn lints_are_expected_with_a_reason() {
    let root = repository_root();
    let allow = concat!("allow(", "clippy");
    let hidden = files(root, &["rs"]).into_iter().filter_map(|file| {
        let text = read_file(&file);
        let line = text.lines().position(|line| line.contains(allow))?;
        Some(format!("{}:{}", shown(root, &file), line + 1))
    });
    let hidden: Vec<_> = hidden.collect();
    assert!(
        hidden.is_empty(),
        "use #[expect(..., reason)]: {}",
        hidden.join(", ")
    );
}

#[test]
fn large_files_and_functions_are_listed() {
    let root = repository_root();
    for file in files(root, &["rs", "lua"]) {
        let (name, text) = (shown(root, &file), read_file(&file));
        let lines = text.lines().count();
        if lines > FILE_LINES {
            print_warning(&format!("{name} has {lines} lines"));
        }
        for (number, line) in text.lines().enumerate() {
            let of_function =
                line.trim_start().starts_with(LONG_FUNCTION) || line.contains("#[expect");
            if line.contains(LONG_FUNCTION) && of_function && !name.starts_with("proto/") {
                print_warning(&format!(
                    "{name}:{} is a function over 100 lines",
                    number + 1
                ));
            }
        }
    }
}

fn server_imports() -> ImportGraph {
    ImportGraph::read(&repository_root().join("server/src"))
}

/// Describes each chain of imports from one of `modules` to one of `others`.
fn chains(graph: &ImportGraph, modules: &[&str], others: &[&str]) -> Vec<String> {
    let is_in = |list: &[&str], module: &str| list.iter().any(|place| covers(place, module));
    let found = graph.import_chains(
        |module| is_in(modules, module),
        |module| is_in(others, module),
    );
    found.iter().map(|chain| chain.join(" -> ")).collect()
}

fn covers(place: &str, module: &str) -> bool {
    let rest = module.strip_prefix(place);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
