//! Parser for the simple commands of a shell script, which runs nothing.

/// A word of a shell command or an item of a YAML list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Word {
    /// The word without its quotes.
    pub text: String,
    /// True if a part of the word was quoted.
    pub is_quoted: bool,
}

/// A command without assignments, redirections and operators.
#[derive(Debug, Clone, Default)]
pub struct SimpleCommand {
    /// The number of the line on which its first word ends.
    pub line: usize,
    /// The name of the program and its arguments.
    pub words: Vec<Word>,
}

impl Word {
    /// Returns a word without quotes.
    #[must_use]
    pub fn plain(text: &str) -> Self {
        let text = text.to_owned();
        Self {
            text,
            is_quoted: false,
        }
    }
}

/// Returns the simple commands of a shell script, including those in `$(…)`.
#[must_use]
pub fn parse_commands(script: &str, first_line: usize) -> Vec<SimpleCommand> {
    let mut reader = Parser {
        rest: script,
        line: first_line,
        ..Parser::default()
    };
    reader.parse(false);
    reader.commands
}

#[derive(Debug, Default)]
struct Parser<'a> {
    rest: &'a str,
    line: usize,
    commands: Vec<SimpleCommand>,
    command: SimpleCommand,
    word: Option<Word>,
    /// True if the next word is the file of a redirection.
    is_redirection: bool,
}

impl<'a> Parser<'a> {
    /// Reads to the end. A nested script ends before its closing parenthesis.
    fn parse(&mut self, is_nested: bool) {
        while let Some(c) = self.rest.chars().next() {
            match c {
                ')' if is_nested => break,
                ' ' | '\t' => self.end_word(),
                '\n' | ';' | '|' | '&' | ')' => self.end_command(),
                '(' => {
                    self.end_command();
                    self.parse_nested();
                    continue;
                }
                '#' if self.word.is_none() => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.skip(end);
                    continue;
                }
                '\'' | '"' if self.parse_quoted(c) => continue,
                '$' if self.rest.starts_with("$(") => {
                    self.push("$");
                    self.skip(1);
                    self.parse_nested();
                    continue;
                }
                '\\' if self.rest.starts_with("\\\n") => {
                    self.skip(2);
                    continue;
                }
                '<' | '>' => {
                    self.parse_angle_bracket();
                    continue;
                }
                _ => self.push(&self.rest[..c.len_utf8()]),
            }
            self.skip(c.len_utf8());
        }
        self.end_command();
    }

    /// Reads `(…)` as separate commands.
    fn parse_nested(&mut self) {
        self.skip(1);
        let (command, word) = (std::mem::take(&mut self.command), self.word.take());
        self.parse(true);
        (self.command, self.word) = (command, word);
        self.skip(1);
    }

    /// Reads a quoted part of a word and returns true, or returns false if there is no closing
    /// quote.
    fn parse_quoted(&mut self, quote: char) -> bool {
        let Some(length) = self.rest[1..].find(quote) else {
            return false;
        };
        let inner = &self.rest[1..=length];
        self.push(inner);
        self.word.get_or_insert_default().is_quoted = true;
        let substitution = inner
            .split_once("$(")
            .and_then(|(_, rest)| rest.rsplit_once(')'));
        if let ('"', Some((script, _))) = (quote, substitution) {
            self.commands.extend(parse_commands(script, self.line));
        }
        self.skip(length + 2);
        true
    }

    /// Reads a placeholder such as `<the lock>`, or the operator of a redirection.
    fn parse_angle_bracket(&mut self) {
        let inner = self.rest[1..]
            .split_once('>')
            .map_or("", |(inner, _)| inner);
        let is_name = |c: char| c.is_alphabetic() || " _-".contains(c);
        let is_phrase = !inner.is_empty() && inner.trim() == inner;
        if self.rest.starts_with('<') && is_phrase && inner.chars().all(is_name) {
            self.push(&self.rest[..inner.len() + 2]);
            self.skip(inner.len() + 2);
            return;
        }
        // A number before the operator is the file descriptor.
        let is_number = |word: &Word| word.text.chars().all(|c| c.is_ascii_digit());
        self.word.take_if(|word| is_number(word));
        self.end_word();
        let operator = self.rest.len() - self.rest.trim_start_matches(['<', '>', '&']).len();
        self.skip(operator);
        self.is_redirection = true;
    }

    fn push(&mut self, text: &'a str) {
        self.word.get_or_insert_default().text += text;
    }

    /// Advances by this many bytes, or to the end.
    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at(bytes.min(self.rest.len()));
        self.line += skipped.matches('\n').count();
        self.rest = rest;
    }

    fn end_word(&mut self) {
        let Some(mut word) = self.word.take() else {
            return;
        };
        if std::mem::take(&mut self.is_redirection) {
            return;
        }
        if !word.is_quoted {
            // Brackets mark an optional argument.
            word.text = word.text.trim_matches(['[', ']']).to_owned();
        }
        if self.command.words.is_empty() {
            self.command.line = self.line;
        }
        self.command.words.push(word);
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_redirection = false;
        let command = std::mem::take(&mut self.command);
        if !command.words.is_empty() {
            self.commands.push(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(script: &str) -> Vec<String> {
        let joined = |simple: SimpleCommand| {
            let words: Vec<_> = simple.words.iter().map(|word| word.text.as_str()).collect();
            format!("{} {}", simple.line, words.join("|"))
        };
        parse_commands(script, 1).into_iter().map(joined).collect()
    }

    #[test]
    fn operators_end_commands() {
        assert_eq!(
            read("a b && c | d; e & f"),
            ["1 a|b", "1 c", "1 d", "1 e", "1 f"]
        );
        assert_eq!(read("a \\\n  b\n\n# c\nd # e"), ["1 a|b", "5 d"]);
        assert_eq!(read("(a; b) || c"), ["1 a", "1 b", "1 c"]);
        assert_eq!(
            read("case $x in 1) a ;; esac"),
            ["1 case|$x|in|1", "1 a", "1 esac"]
        );
    }

    #[test]
    fn quotes_join_words() {
        assert_eq!(read("a 'b; c' \"d\ne\" f'g'h"), ["1 a|b; c|d\ne|fgh"]);
        assert_eq!(read("broker's line\nb"), ["1 broker's|line", "2 b"]);
    }

    #[test]
    fn substitutions_are_commands() {
        assert_eq!(read("x=$(a b) y"), ["1 a|b", "1 x=$|y"]);
        assert_eq!(read("x=\"$(a b)\"\nc"), ["1 a|b", "1 x=$(a b)", "2 c"]);
        assert_eq!(read("x=$(($(a) + 1))\nb").last(), Some(&"2 b".to_owned()));
    }

    #[test]
    fn redirections_are_no_arguments() {
        assert_eq!(read("a <in 2>/dev/null >&2 b >> out c"), ["1 a|b|c"]);
        assert_eq!(read("a <<< \"$x\" b"), ["1 a|b"]);
        assert_eq!(
            read("a <the lock> --b=<token> [C]"),
            ["1 a|<the lock>|--b=<token>|C"]
        );
    }
}
