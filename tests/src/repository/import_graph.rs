//! The graph of imports between the modules of the server, read from its source.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
};

/// Path of a module's file below the source folder, without the extension. The module in
/// `store/redis.rs` is `store/redis`.
pub type Module = String;

/// Direct imports between modules.
#[derive(Debug, Default)]
pub struct ImportGraph {
    imports: BTreeMap<Module, BTreeSet<Module>>,
}

impl ImportGraph {
    /// Reads all modules below `source` except unit tests, which may import every module.
    #[must_use]
    pub fn read(source: &Path) -> Self {
        let files = rust_files(source).into_iter().map(|file| {
            let module = file.strip_prefix(source).expect("a file below the folder");
            let module = module.with_extension("").to_string_lossy().into_owned();
            (module, read_file(&file))
        });
        Self::from_sources(files.filter(|(module, _)| !module.ends_with("/tests")))
    }

    /// Builds the graph from pairs of module and source text.
    pub fn from_sources(modules: impl IntoIterator<Item = (Module, String)>) -> Self {
        let texts: BTreeMap<_, _> = modules.into_iter().collect();
        let imports = texts.iter().map(|(module, text)| {
            let code = strip_comments_and_tests(text);
            let paths = ["crate", "super", "self"].into_iter().flat_map(|root| {
                let found = paths_under_root(&code, root);
                found.filter_map(|path| resolve_path(module, root, &path))
            });
            let targets = paths.filter_map(|path| module_of_path(&texts, &path));
            let targets: BTreeSet<_> = targets.filter(|target| target != module).collect();
            (module.clone(), targets)
        });
        Self {
            imports: imports.collect(),
        }
    }

    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.imports.keys()
    }

    /// Returns the graph of the top-level modules. Each of them has the imports of all its
    /// submodules.
    #[must_use]
    pub fn top_level_modules(&self) -> Self {
        let mut imports: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (module, targets) in &self.imports {
            let module = top_level(module);
            let targets = targets.iter().map(|target| top_level(target));
            let targets = targets.filter(|target| *target != module);
            let all = imports.entry(module.to_owned()).or_default();
            all.extend(targets.map(str::to_owned));
        }
        Self { imports }
    }

    /// Returns the pairs of modules that import each other, directly or through other modules.
    #[must_use]
    pub fn cycles(&self) -> Vec<[&str; 2]> {
        let imports = |from: &str, to: &str| {
            let chains = self.import_chains(|module| module == from, |module| module == to);
            !chains.is_empty()
        };
        let modules = self.imports.keys().map(String::as_str);
        let pairs = modules.clone().flat_map(|first| {
            let later = modules.clone().filter(move |second| first < *second);
            later.map(move |second| [first, second])
        });
        let cycles =
            pairs.filter(|[first, second]| imports(first, second) && imports(second, first));
        cycles.collect()
    }

    /// Returns the shortest chain of imports from one of the modules in `from` to each module that
    /// `is_forbidden` accepts. A chain ends at the first forbidden module, because further imports
    /// are made by the forbidden module.
    pub fn import_chains(
        &self,
        from: impl Fn(&str) -> bool,
        is_forbidden: impl Fn(&str) -> bool,
    ) -> Vec<Vec<&str>> {
        let starts = self.imports.keys().filter(|module| from(module));
        let mut open: VecDeque<Vec<&str>> = starts.map(|module| vec![module.as_str()]).collect();
        let mut seen: BTreeSet<&str> = open.iter().map(|chain| chain[0]).collect();
        let mut found = Vec::new();
        while let Some(chain) = open.pop_front() {
            let last = chain.last().expect("a chain has a start");
            for target in &self.imports[*last] {
                if !seen.insert(target) {
                    continue;
                }
                let mut longer = chain.clone();
                longer.push(target);
                if is_forbidden(target) {
                    found.push(longer);
                } else {
                    open.push_back(longer);
                }
            }
        }
        found
    }
}

/// Returns the top-level module that contains `module`.
#[must_use]
pub fn top_level(module: &str) -> &str {
    module.split('/').next().unwrap_or(module)
}

/// Returns all Rust files below `folder`.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    let paths = entries.map(|entry| entry.expect("a readable entry").path());
    let files = paths.flat_map(|path| {
        if path.is_dir() {
            rust_files(&path)
        } else {
            vec![path]
        }
    });
    let rust = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "rs");
    files.filter(rust).collect()
}

/// Returns the text of a file.
///
/// # Panics
/// If the file cannot be read.
#[must_use]
pub fn read_file(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the text without line comments and without the unit tests at its end.
#[must_use]
pub fn strip_comments_and_tests(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let code = lines.collect::<Vec<_>>().join("\n");
    match code.find("#[cfg(test)]\nmod tests {") {
        Some(at) => code[..at].to_owned(),
        None => code,
    }
}

/// Returns true if `name` is the first part of a path, in code or in a `use` line.
#[must_use]
pub fn is_path_root(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + name.len()..];
        let in_use = code[..at].trim_end().ends_with("use") && after.starts_with([';', ' ']);
        !before.is_some_and(|c| is_identifier_char(c) || c == ':')
            && (after.starts_with("::") || in_use)
    })
}

/// Returns the path after each `root::` that begins a path, with groups in braces expanded.
fn paths_under_root(code: &str, root: &str) -> impl Iterator<Item = String> {
    let start = format!("{root}::");
    let begins = code.match_indices(&start).filter(|(at, _)| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|c| is_identifier_char(c) || c == ':')
    });
    let ends: Vec<_> = begins.map(|(at, start)| at + start.len()).collect();
    ends.into_iter().flat_map(|end| expand_paths(&code[end..]))
}

/// Returns the path from the source folder, or `None` if the path leaves it.
fn resolve_path(module: &str, root: &str, path: &str) -> Option<String> {
    let mut base: Vec<&str> = match root {
        "crate" => Vec::new(),
        _ => module.split('/').collect(),
    };
    let mut path = path;
    if root == "super" {
        base.pop()?;
        while let Some(rest) = path.strip_prefix("super/") {
            base.pop()?;
            path = rest;
        }
    }
    base.push(path);
    Some(base.join("/"))
}

/// Returns the module that `path` names, or the module of the item that `path` names.
fn module_of_path(texts: &BTreeMap<Module, String>, path: &str) -> Option<Module> {
    let ends = path.match_indices('/').map(|(at, _)| at);
    let mut ends: Vec<_> = ends.chain([path.len()]).collect();
    ends.reverse();
    let mut prefixes = ends.into_iter().map(|end| &path[..end]);
    let module = prefixes.find(|prefix| texts.contains_key(*prefix));
    module.map(str::to_owned)
}

/// Returns the paths at the beginning of `text`, with the groups in braces expanded.
fn expand_paths(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !is_identifier_char(c) && c != ':');
    let end = end.unwrap_or(text.len());
    let path = text[..end].trim_matches(':').replace("::", "/");
    if !text[end..].starts_with('{') {
        return vec![path];
    }
    let parts = split_group(&text[end + 1..]);
    let inner = parts.iter().flat_map(|part| expand_paths(part.trim()));
    inner
        .map(|part| format!("{path}/{part}").trim_matches('/').to_owned())
        .collect()
}

/// Splits a group at its top-level commas. `text` begins behind the opening brace.
fn split_group(text: &str) -> Vec<&str> {
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

fn is_identifier_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(modules: &[(&str, &str)]) -> ImportGraph {
        let modules = modules.iter().copied();
        ImportGraph::from_sources(
            modules.map(|(module, text)| (module.to_owned(), text.to_owned())),
        )
    }

    #[test]
    fn finds_an_indirect_import() {
        let graph = graph(&[
            ("broker", "use crate::quotas::Quotas;"),
            ("config", "use crate::{quotas, store::memory};"),
            ("quotas", "use crate::{config::Live, lock};"),
            ("lock", ""),
        ]);
        let chains = graph.import_chains(|module| module == "broker", |module| module == "config");
        assert_eq!(chains, [["broker", "quotas", "config"]]);
    }

    #[test]
    fn finds_top_level_modules_that_import_each_other() {
        let graph = graph(&[
            ("config", "use crate::quotas;"),
            ("config/limits", ""),
            ("quotas", "use crate::telemetry;"),
            ("telemetry", ""),
            ("telemetry/filter", "use crate::config::limits;"),
            ("lock", ""),
        ]);
        assert!(graph.cycles().is_empty());
        let top_level = graph.top_level_modules();
        let expected = [
            ["config", "quotas"],
            ["config", "telemetry"],
            ["quotas", "telemetry"],
        ];
        assert_eq!(top_level.cycles(), expected);
    }

    #[test]
    fn reads_groups_relative_paths_and_paths_in_code() {
        let graph = graph(&[
            (
                "store",
                "use self::memory::MemoryStore;\nfn f() { crate::trace::Tracer::new(); }",
            ),
            (
                "store/memory",
                "use super::Event;\nuse super::super::lock::{Lease, key::Key};",
            ),
            ("lock", "// crate::store::Event"),
            (
                "lock/key",
                "#[cfg(test)]\nmod tests {\n use crate::store::Event;\n}",
            ),
            ("trace", "use other_crate::store::X;"),
        ]);
        let imports = |module: &str| graph.imports[module].iter().collect::<Vec<_>>();
        assert_eq!(imports("store"), ["store/memory", "trace"]);
        assert_eq!(imports("store/memory"), ["lock", "lock/key", "store"]);
        assert!(imports("lock").is_empty() && imports("lock/key").is_empty());
        assert!(imports("trace").is_empty());
    }

    #[test]
    fn finds_the_names_of_crates() {
        assert!(is_path_root("use fred::clients::Client;", "fred"));
        assert!(is_path_root("let x = fred::Client::new();", "fred"));
        assert!(is_path_root("use tonic;", "tonic"));
        assert!(!is_path_root("alfred::x tonic_x::y a::tonic::z", "fred"));
        assert!(!is_path_root("a::tonic::z tonic_x::y", "tonic"));
    }
}
