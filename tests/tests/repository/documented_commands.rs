//! Parses each command of `leasehold` and `leasehold-server` in the documentation with the argument
//! parser of that program.
//!
//! Commands are read from code blocks for a shell, from inline code and from command lists in YAML.
//! Inline code may omit arguments (`leasehold ls --owner`), and so may a command that ends with an
//! ellipsis. The written parts must exist. Values in capitals, in `<>`, and with `$` stand for any
//! value.

use std::{fmt, fs, path::Path};

use clap::{
    Command, CommandFactory as _,
    builder::OsStringValueParser,
    error::{ContextKind, ContextValue, ErrorKind},
};
use leasehold_server::config::Cli;
use leasehold_tests::repository::{
    paths::repository_root,
    shell_parser::{self, SimpleCommand, Word},
};

/// Files and folders with documentation. Of `client-sdk` only the README files count.
const DOCUMENTATION: [&str; 6] = [
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "client-sdk",
    "deploy",
    "docs",
];
/// Minimum number of commands by origin: the test must not pass because it finds none.
const FOUND_MIN: [(Origin, usize); 3] =
    [(Origin::Block, 12), (Origin::Inline, 90), (Origin::List, 4)];
/// Languages of code blocks that contain shell commands.
const SHELLS: [&str; 5] = ["", "bash", "console", "sh", "shell"];
/// Words that may precede the name of a program.
const BEFORE_A_PROGRAM: [&str; 15] = [
    "!", "$", "do", "else", "env", "exec", "if", "nohup", "sudo", "then", "time", "until", "while",
    "{", "}",
];
/// Flags of other programs that the documentation names on their own.
const FLAGS_OF_OTHERS: [&str; 5] = ["--busy", "--fix", "--list", "--quick", "--set"];
/// Entry points of images in `compose.yaml` other than Leasehold's.
const OTHER_IMAGES: [&str; 1] = ["valkey-server"];
/// Errors of the parser about commands that are right but incomplete.
const MISSING: [ErrorKind; 3] = [
    ErrorKind::MissingRequiredArgument,
    ErrorKind::MissingSubcommand,
    ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
];
const COMPOSE: &str = "deploy/docker/compose.yaml";
const CLI_PAGE: &str = "docs/cli.md";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Block,
    Inline,
    List,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Leasehold,
    Server,
}

/// Arguments of one of the two programs, as documented.
#[derive(Debug)]
struct Documented {
    place: String,
    origin: Origin,
    /// `None` if only a flag is named.
    program: Option<Program>,
    arguments: Vec<Word>,
}

impl Program {
    const ALL: [Self; 2] = [Self::Leasehold, Self::Server];

    fn parser(self) -> Command {
        match self {
            Self::Leasehold => leasehold_cli::command(),
            Self::Server => Cli::command(),
        }
    }

    /// Returns the program with this name or path.
    fn from_name(text: &str) -> Option<Self> {
        match text.rsplit('/').next() {
            Some("leasehold") => Some(Self::Leasehold),
            Some("leasehold-server") => Some(Self::Server),
            Some(_) | None => None,
        }
    }

    /// Returns the program of a package of the workspace.
    fn packaged(package: &str) -> Option<Self> {
        match package {
            "leasehold-cli" => Some(Self::Leasehold),
            "leasehold-server" => Some(Self::Server),
            _ => None,
        }
    }

    /// Returns the program of a subcommand that is named without its program. Outside of the page
    /// of the command line only names with a hyphen are unambiguous.
    fn of_subcommand(name: &str, page: &str) -> Option<Self> {
        let is_certain = name.contains('-') || page == CLI_PAGE;
        let mut programs = Self::ALL.into_iter().filter(|_| is_certain);
        programs.find(|program| program.parser().find_subcommand(name).is_some())
    }
}

/// Returns true if the rest of the command was left out.
fn is_ellipsis(word: &Word) -> bool {
    !word.is_quoted && ["…", "..."].contains(&word.text.as_str())
}

/// Returns true if the reader replaces the word by a value.
fn stands_for_a_value(word: &Word) -> bool {
    let is_upper = |c: char| c.is_ascii_uppercase() || "_-…".contains(c);
    let text = word.text.rsplit('=').next().unwrap_or("");
    text.contains(['$', '<', '…']) || !text.is_empty() && text.chars().all(is_upper)
}

impl fmt::Display for Documented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.arguments.iter().map(|w| w.text.as_str()).collect();
        write!(f, "{}: `{}`", self.place, words.join(" "))
    }
}

#[test]
fn the_documented_commands_exist() {
    let found: Vec<_> = documentation()
        .iter()
        .flat_map(|(name, text)| commands_of(name, text))
        .collect();
    for (origin, min) in FOUND_MIN {
        let count = found.iter().filter(|c| c.origin == origin).count();
        assert!(count >= min, "{origin:?}: {count} commands, {min} expected");
    }
    let wrong: Vec<_> = found.iter().filter_map(|c| check(c).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_that_do_not_exist_are_reported() {
    let wrong = [
        "`leasehold list --namespace` *n*",
        "`leasehold get lock --namespaces` *n*",
        "`leasehold force-release NAME LEASE_ID --grace 30parsecs`",
        "`leasehold-server check-config --conect`",
        "`init-store --stores`",
        "`--lease-fil`",
        "```\nleasehold get\n```",
        "```\nif ! leasehold rum a -- true; then\n```",
        "```\nx | FOO=1 leasehold ls \\\n  --onwer me > list\n```",
        "```\nlease=$(leasehold acquire a --no-wat)\n```",
        "```\nkubectl exec broker -- leasehold pin\n```",
        "```console\n$ leasehold-server serv\nno output\n```",
        "```\ncargo run -p leasehold-cli -- rum a -- true\n```",
        "```yaml\ncommand: [leasehold, run, a, --no-wiat, --, ./report.sh]\n```",
        "```yaml\ncommand: [/usr/local/bin/leasehold]\nargs:\n  - pin\n```",
    ];
    for text in wrong {
        let found = commands_of("page.md", text);
        let errors: Vec<_> = found.iter().filter_map(|c| check(c).err()).collect();
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        assert!(errors[0].starts_with("page.md:"), "{errors:?}");
    }
}

#[test]
fn shell_syntax_is_no_part_of_a_command() {
    let right = [
        ("`leasehold`, `leasehold run`, `check-config --connect`", 2),
        ("`leasehold ls --owner` and ``leasehold get NAME``", 2),
        ("`leasehold completion bash\\|zsh`", 1),
        ("`leasehold COMMAND --help`, `-- peers --quick`", 1),
        ("a code that is\nwrapped: `leasehold\nls -A`", 1),
        ("```\nleasehold-server check-config --connect …\n```", 1),
        (
            "```\nleasehold run a -- sh -c 'leasehold x; y' # leasehold z\n```",
            1,
        ),
        (
            "```\nleasehold check-token <the lock> <token> 2>/dev/null >&2\n```",
            1,
        ),
        (
            "```\none && leasehold renew <lease.json || leasehold release\n```",
            2,
        ),
        ("```\nhelm install leasehold deploy/helm/leasehold\n```", 0),
        (
            "```\nleasehold: the lock is lost\nleasehold = { path = 1 }\n```",
            0,
        ),
        ("```console\n$ leasehold ls\nleasehold isn't asked\n```", 1),
        ("```rust\nleasehold x;\n```", 0),
    ];
    for (text, count) in right {
        let found: Vec<_> = commands_of("page.md", text);
        let errors: Vec<_> = found.iter().filter_map(|c| check(c).err()).collect();
        assert!(errors.is_empty(), "{text}: {errors:?}");
        assert_eq!(found.len(), count, "{text}: {found:?}");
    }
}

/// Parses a command with the parser of its program.
///
/// # Errors
/// The place of the command, and the message of the parser.
fn check(command: &Documented) -> Result<(), String> {
    let parsers = match command.program {
        Some(program) => vec![program.parser()],
        None => parsers_with_flag(&command.arguments[0].text),
    };
    let mut message = "no command has this flag".to_owned();
    for parser in parsers {
        match parse(&parser, command) {
            Ok(()) => return Ok(()),
            Err(error) => message = error,
        }
    }
    Err(format!("{command}: {message}"))
}

/// Returns the subcommands of both programs that have this flag.
fn parsers_with_flag(flag: &str) -> Vec<Command> {
    let name = flag
        .split('=')
        .next()
        .map(|flag| flag.trim_start_matches('-'));
    let has_flag = |parser: &Command| parser.get_arguments().any(|a| a.get_long() == name);
    let mut found = Vec::new();
    for program in Program::ALL {
        let mut parser = program.parser();
        // Copies the global flags into the subcommands.
        parser.build();
        found.extend(parser.get_subcommands().filter(|p| has_flag(p)).cloned());
    }
    found
}

fn parse(parser: &Command, command: &Documented) -> Result<(), String> {
    let is_cut = command.arguments.iter().any(is_ellipsis);
    let is_partial = is_cut || command.origin == Origin::Inline;
    let words = command.arguments.iter().filter(|w| !is_ellipsis(w));
    let words: Vec<_> = words.map(|word| word.text.as_str()).collect();
    let arguments = || [parser.get_name()].into_iter().chain(words.iter().copied());
    let Err(mut error) = parser.clone().try_get_matches_from(arguments()) else {
        return Ok(());
    };
    let is_value = [ErrorKind::InvalidValue, ErrorKind::ValueValidation].contains(&error.kind());
    if is_value && is_placeholder(&error, &command.arguments) {
        match any_values(parser.clone()).try_get_matches_from(arguments()) {
            Ok(_) => return Ok(()),
            Err(other) => error = other,
        }
    }
    let kind = error.kind();
    if [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&kind) {
        return Ok(());
    }
    let is_incomplete = MISSING.contains(&kind)
        || kind == ErrorKind::InvalidValue && invalid_value(&error).is_empty()
        // `leasehold COMMAND --help`
        || kind == ErrorKind::InvalidSubcommand && stands_for_a_value(&command.arguments[0]);
    if is_incomplete && is_partial {
        return Ok(());
    }
    let message = error.to_string();
    let lines = message.lines().filter(|line| !line.is_empty());
    let lines: Vec<_> = lines.map(str::trim).take(2).collect();
    Err(lines.join("; "))
}

/// Returns the value that the parser rejected.
fn invalid_value(error: &clap::Error) -> &str {
    match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value,
        Some(_) | None => "",
    }
}

fn is_placeholder(error: &clap::Error, words: &[Word]) -> bool {
    let value = invalid_value(error);
    let mut words = words.iter().filter(|word| word.text.ends_with(value));
    !value.is_empty() && words.any(stands_for_a_value)
}

/// Returns the parser with the same arguments, whose values may be any text.
fn any_values(parser: Command) -> Command {
    let any_value = |argument: clap::Arg| {
        if argument.get_action().takes_values() {
            argument.value_parser(OsStringValueParser::new())
        } else {
            argument
        }
    };
    parser.mut_args(any_value).mut_subcommands(any_values)
}

/// Returns name and text of each file of the documentation.
fn documentation() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for name in DOCUMENTATION {
        collect(&repository_root().join(name), &mut files);
    }
    files
}

fn collect(path: &Path, files: &mut Vec<(String, String)>) {
    let name = path
        .strip_prefix(repository_root())
        .expect("a file of the workspace");
    let name = name.to_str().expect("a name in UTF-8").to_owned();
    let is_generated = ["target", "node_modules"]
        .iter()
        .any(|folder| path.ends_with(folder));
    let is_text = [".md", ".tpl", ".txt", ".yaml"]
        .iter()
        .any(|end| name.ends_with(end));
    if path.is_dir() && !is_generated {
        for entry in fs::read_dir(path).expect("a readable folder") {
            collect(&entry.expect("an entry").path(), files);
        }
    } else if is_text && (!name.starts_with("client-sdk") || name.ends_with("README.md")) {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        files.push((name, text));
    }
}

/// Returns all commands of the two programs in a file.
fn commands_of(name: &str, text: &str) -> Vec<Documented> {
    let mut found = Vec::new();
    let mut add = |origin, simple: Vec<SimpleCommand>| {
        for simple in simple {
            found.extend(documented(name, origin, &simple));
        }
    };
    if name.ends_with(".md") {
        let (blocks, prose) = blocks(text);
        for block in &blocks {
            if SHELLS.contains(&block.language.as_str()) {
                add(Origin::Block, block.commands());
            } else if block.language == "yaml" {
                add(Origin::List, lists(&block.text, block.line));
            }
        }
        add(Origin::Inline, inline(&prose));
    } else if name.ends_with(".txt") {
        for (at, line) in text.lines().enumerate() {
            add(
                Origin::Block,
                shell_parser::parse_commands(&without_templates(line), at + 1),
            );
        }
    } else {
        add(Origin::List, lists(text, 1));
        add(Origin::Inline, inline(text));
    }
    found
}

/// Returns the arguments that a command passes to one of the programs, directly or after `--`.
fn documented(name: &str, origin: Origin, simple: &SimpleCommand) -> Option<Documented> {
    let skipped = simple.words.iter().take_while(|word| {
        is_assignment(&word.text) || BEFORE_A_PROGRAM.contains(&word.text.as_str())
    });
    let words = &simple.words[skipped.count()..];
    let first = words.first()?.text.as_str();
    let behind = words.iter().position(|word| word.text == "--");
    let behind = behind.map_or(&[][..], |at| &words[at + 1..]);
    let second = behind
        .first()
        .and_then(|word| Program::from_name(&word.text));
    let (program, arguments) = if let Some(program) = Program::from_name(first) {
        (Some(program), &words[1..])
    } else if first == "cargo" && words.get(1)?.text == "run" {
        let mut packages = words
            .iter()
            .filter_map(|word| Program::packaged(&word.text));
        (Some(packages.next()?), behind)
    } else if let Some(program) = second {
        (Some(program), &behind[1..])
    } else if origin == Origin::List && name == COMPOSE && !OTHER_IMAGES.contains(&first) {
        (Some(Program::Server), words)
    } else if origin != Origin::Inline {
        return None;
    } else if first.starts_with("--") && first.len() > 2 && !FLAGS_OF_OTHERS.contains(&first) {
        (None, words)
    } else {
        (Some(Program::of_subcommand(first, name)?), words)
    };
    // `leasehold = {…}` is TOML.
    if arguments.first()?.text == "=" {
        return None;
    }
    Some(Documented {
        place: format!("{name}:{}", simple.line),
        origin,
        program,
        arguments: arguments.to_vec(),
    })
}

fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    word.split_once('=')
        .is_some_and(|(name, _)| !name.is_empty() && is_name(name))
}

/// A code block of a Markdown file.
#[derive(Debug, Default)]
struct Block {
    language: String,
    /// The number of its first line.
    line: usize,
    text: String,
}

impl Block {
    /// Returns the commands of the block. If it has prompts, all other lines are output.
    fn commands(&self) -> Vec<SimpleCommand> {
        let has_prompts = self.text.lines().any(|line| line.starts_with("$ "));
        if !has_prompts {
            return shell_parser::parse_commands(&self.text, self.line);
        }
        let lines = self.text.lines().enumerate();
        let lines = lines.filter(|(_, line)| line.starts_with("$ "));
        lines
            .flat_map(|(at, line)| shell_parser::parse_commands(line, self.line + at))
            .collect()
    }
}

/// Splits Markdown into code blocks and the text around them, in which blocks are empty lines.
fn blocks(text: &str) -> (Vec<Block>, String) {
    let (mut blocks, mut prose, mut open) = (Vec::new(), String::new(), None::<Block>);
    for (at, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text += line;
                block.text.push('\n');
                open = Some(block);
            }
            (Some(language), None) if !language.contains('`') => {
                open = Some(Block {
                    language: language.trim().to_owned(),
                    line: at + 2,
                    text: String::new(),
                });
            }
            (_, None) => prose += line,
        }
        prose.push('\n');
    }
    (blocks, prose)
}

/// Returns the commands in inline code, which may be wrapped but ends with its paragraph.
fn inline(prose: &str) -> Vec<SimpleCommand> {
    let (mut found, mut line) = (Vec::new(), 1);
    for paragraph in prose.split("\n\n") {
        let mut rest = paragraph;
        let mut at = line;
        while let Some(start) = rest.find('`') {
            at += rest[..start].matches('\n').count();
            let fence = rest[start..].len() - rest[start..].trim_start_matches('`').len();
            let fence = &rest[start..start + fence];
            rest = &rest[start + fence.len()..];
            let Some(end) = rest.find(fence) else { break };
            let code = rest[..end].replace("\\|", "|").replace('\n', " ");
            found.extend(shell_parser::parse_commands(&code, at));
            at += rest[..end].matches('\n').count();
            rest = &rest[end + fence.len()..];
        }
        line += paragraph.matches('\n').count() + 2;
    }
    found
}

/// Returns the `command` and `args` lists of YAML, joined if they belong to one container.
fn lists(text: &str, first_line: usize) -> Vec<SimpleCommand> {
    let text = without_templates(text);
    let (mut found, mut open) = (Vec::new(), None::<SimpleCommand>);
    for (at, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or("").trim();
        let item = line.strip_prefix("- ");
        match item.unwrap_or(line).split_once(':') {
            Some((key @ ("command" | "args"), value)) => {
                let previous = open.take();
                let (ended, joined) = match key {
                    "args" => (None, previous),
                    _ => (previous, None),
                };
                found.extend(ended);
                let mut simple = joined.unwrap_or(SimpleCommand {
                    line: first_line + at,
                    words: Vec::new(),
                });
                let value = value.trim().trim_matches(['[', ']']);
                let items = value.split(", ").filter(|item| !item.is_empty());
                simple.words.extend(items.map(unquoted));
                open = Some(simple);
            }
            _ => match (item, &mut open) {
                (Some(item), Some(simple)) => simple.words.push(unquoted(item)),
                _ => found.extend(open.take()),
            },
        }
    }
    found.extend(open);
    found
}

fn unquoted(item: &str) -> Word {
    Word::plain(item.trim_matches(['"', '\'']))
}

/// Replaces Helm templates by a variable.
fn without_templates(text: &str) -> String {
    let mut parts = text.split("{{");
    let mut replaced = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (template, rest) = part.split_once("}}").unwrap_or((part, ""));
        replaced += "$template";
        replaced.extend(template.chars().filter(|c| *c == '\n'));
        replaced += rest;
    }
    replaced
}
