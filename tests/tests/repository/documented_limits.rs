//! Checks that docs/limits.md lists the bounds of the code, and that the tests that it names exist.

use std::path::Path;

use leasehold_tests::repository::{import_graph::read_file, paths::repository_root};

/// A row of the table.
struct Limit {
    what: String,
    default: String,
    /// The setting, or a file and its constant.
    place: Vec<String>,
    tests: Vec<String>,
}

/// Value of a bound: a count, a number of bytes, milliseconds, or a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Number(u64),
    Ms(u64),
    Rate { per_second: u64, burst: u64 },
}

#[test]
fn documented_limits_are_those_of_the_code() {
    let defaults = read_file(&repository_root().join("docs/configuration.md"));
    let wrong: Vec<_> = limits()
        .iter()
        .filter_map(|limit| {
            let written = documented(&limit.default);
            let is_so = match limit.place.as_slice() {
                [setting] => default_of(&defaults, setting),
                [file, constant] => {
                    let code = read_file(&repository_root().join("server/src").join(file));
                    constant_of(&code, constant)
                }
                other => panic!("{}: {other:?} is no setting and no constant", limit.what),
            };
            let is_right = written.is_some() && written == is_so;
            let difference = format!("{}: written {:?}, is {is_so:?}", limit.what, limit.default);
            (!is_right).then_some(difference)
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tests_of_limits_exist() {
    let mut named = 0;
    for limit in limits() {
        for test in &limit.tests {
            let (path, function) = test.rsplit_once("::").expect("a path");
            let (root, module) = path.split_once("::").expect("a module");
            let folder = match root {
                "server" => "server/src",
                "stores" => "tests/src/conformance",
                // `documented_tests` checks the other tests.
                _ => continue,
            };
            let file = repository_root()
                .join(folder)
                .join(module.replace("::", "/"));
            let code = read_file(&file.with_extension("rs"));
            assert!(code.contains(&format!("fn {function}(")), "{test}");
            named += 1;
        }
    }
    assert!(named > 10, "only {named} tests of units and stores");
}

#[test]
fn values_are_read_as_they_are_written() {
    for (text, value) in [
        ("10,000", Value::Number(10_000)),
        ("64 KiB", Value::Number(65_536)),
        ("500 ms", Value::Ms(500)),
        ("30 min", Value::Ms(1_800_000)),
    ] {
        assert_eq!(documented(text), Some(value), "{text}");
    }
    let rate = Value::Rate {
        per_second: 5,
        burst: 10,
    };
    assert_eq!(documented("5 a second, 10 at once"), Some(rate));
    let code = "const MANY: usize = 4 << 20;\npub const LONG: Duration = Duration::from_secs(5);\n\
                const SHORT_MS: u64 = 1_000;\nconst EACH: u32 = 5;\n\
                const RATE: RateLimit = RateLimit::per_second(EACH, 10);\n";
    for (name, value) in [
        ("MANY", Value::Number(4_194_304)),
        ("LONG", Value::Ms(5_000)),
        ("SHORT_MS", Value::Ms(1_000)),
        ("RATE", rate),
    ] {
        assert_eq!(constant_of(code, name), Some(value), "{name}");
    }
    assert_eq!(constant_of(code, "OTHER"), None);
    assert_eq!(documented("many"), None);
}

/// Returns the rows of the table.
fn limits() -> Vec<Limit> {
    let text = read_file(&repository_root().join(Path::new("docs/limits.md")));
    let (_, table) = text.split_once("<!-- limits -->\n").expect("a beginning");
    let (table, _) = table.split_once("<!-- end of limits -->").expect("an end");
    let limits: Vec<_> = table
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [_, what, default, place, setting, tests] = cells[..] else {
                panic!("a row of {} cells: {line}", cells.len());
            };
            let place = quoted(place);
            let says = if place.len() == 1 { "yes: " } else { "no: " };
            assert!(setting.starts_with(says), "{line}");
            let tests_of = quoted(tests);
            assert!(!tests_of.is_empty(), "{line}");
            Limit {
                what: what.to_owned(),
                default: default.to_owned(),
                place,
                tests: tests_of,
            }
        })
        .collect();
    assert!(limits.len() > 50, "only {} limits", limits.len());
    limits
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Reads a value of the table, such as `4 MiB`, or of a setting, such as `4MiB`.
fn documented(text: &str) -> Option<Value> {
    if let Some((rate, burst)) = text.split_once(" a second, ") {
        return Some(Value::Rate {
            per_second: rate.parse().ok()?,
            burst: burst.strip_suffix(" at once")?.parse().ok()?,
        });
    }
    let text = text.replace(',', "");
    let unit_at = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    let number: u64 = number.parse().ok()?;
    match unit.trim() {
        "" => Some(Value::Number(number)),
        "KiB" => Some(Value::Number(number << 10)),
        "MiB" => Some(Value::Number(number << 20)),
        "ms" => Some(Value::Ms(number)),
        "s" => Some(Value::Ms(number * 1_000)),
        "m" | "min" => Some(Value::Ms(number * 60_000)),
        "h" => Some(Value::Ms(number * 3_600_000)),
        _ => None,
    }
}

/// Returns the default of a setting in docs/configuration.md.
fn default_of(documentation: &str, setting: &str) -> Option<Value> {
    let row = format!("| `{setting}` | `");
    let (_, rest) = documentation.split_once(&row)?;
    documented(rest.split_once('`')?.0)
}

fn constant_of(code: &str, name: &str) -> Option<Value> {
    let (_, rest) = code.split_once(&format!("const {name}: "))?;
    let (_, definition) = rest.split_once(';')?.0.split_once(" = ")?;
    if let Some(seconds) = argument(definition, "Duration::from_secs") {
        return Some(Value::Ms(number_of(code, seconds)? * 1_000));
    }
    if let Some(ms) = argument(definition, "Duration::from_millis") {
        return Some(Value::Ms(number_of(code, ms)?));
    }
    if let Some(rate) = argument(definition, "RateLimit::per_second") {
        let (per_second, burst) = rate.split_once(", ")?;
        return Some(Value::Rate {
            per_second: number_of(code, per_second)?,
            burst: number_of(code, burst)?,
        });
    }
    let number = number_of(code, definition)?;
    Some(if name.ends_with("_MS") {
        Value::Ms(number)
    } else {
        Value::Number(number)
    })
}

fn argument<'a>(definition: &'a str, function: &str) -> Option<&'a str> {
    let rest = definition.strip_prefix(function)?;
    rest.strip_prefix('(')?.strip_suffix(')')
}

/// Evaluates a number, a product, a shift or the name of another constant.
fn number_of(code: &str, expression: &str) -> Option<u64> {
    if let Some((left, right)) = expression.split_once(" << ") {
        return Some(number_of(code, left)? << number_of(code, right)?);
    }
    if let Some((left, right)) = expression.split_once(" * ") {
        return Some(number_of(code, left)? * number_of(code, right)?);
    }
    if expression.starts_with(|c: char| c.is_ascii_uppercase()) {
        return match constant_of(code, expression)? {
            Value::Number(number) | Value::Ms(number) => Some(number),
            Value::Rate { .. } => None,
        };
    }
    expression.replace('_', "").parse().ok()
}
