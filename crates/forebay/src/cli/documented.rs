//! Every command that the documents name is one that the program takes.
//!
//! Commands are in code blocks, as they are typed, and between backticks. They are taken apart as a
//! shell does, and given to the parser. What a block says must be whole. Between backticks values
//! may be left out (`forebay volume delete`), and so may what a group of commands goes on with
//! (`forebay device`). Names in capitals are values like any other; `COMMAND` stands for a command.

use std::path::Path;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};

use super::Cli;
use crate::config::example::entries;

/// A command, and where it was found.
struct DocumentedCommand {
    place: String,
    words: Vec<String>,
    /// True if the command was between backticks.
    is_named: bool,
}

/// The commands of a line, as a shell splits it.
fn split(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut quote): (Option<String>, Option<char>) = (None, None);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(q), _) if q == c => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '\t' | '|' | '&' | ';' | '<' | '>') => {
                words.extend(word.take());
                // A file is behind `<` and `>`, and no command begins there that counts.
                if !matches!(c, ' ' | '\t') {
                    all.push(std::mem::take(&mut words));
                }
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    all.push(words);
    all
}

/// Collects the commands of Forebay in a line: without `sudo`, and without variables before them.
fn ours(line: &str, place: &str, is_named: bool, found: &mut Vec<DocumentedCommand>) {
    for words in split(line) {
        let is_before =
            |word: &&String| *word == "sudo" || (word.contains('=') && !word.is_empty());
        let skipped = words.iter().take_while(is_before).count();
        let words = words[skipped..].to_vec();
        if words.first().is_some_and(|word| word == "forebay") {
            found.push(DocumentedCommand { place: place.to_owned(), words, is_named });
        }
    }
}

/// Collects the commands between backticks.
fn named(text: &str, place: &str, found: &mut Vec<DocumentedCommand>) {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for code in joined.split('`').skip(1).step_by(2) {
        ours(code, &format!("{place}, `{code}`"), true, found);
    }
}

fn of_document(name: &str, found: &mut Vec<DocumentedCommand>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let (mut fenced, mut prose, mut begun) = (false, String::new(), String::new());
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        let indented = line.starts_with("    ");
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || indented {
            match line.strip_suffix('\\') {
                Some(part) => begun += part,
                None => {
                    ours(&format!("{}{line}", std::mem::take(&mut begun)), &place, false, found)
                }
            }
        } else {
            if line.is_empty() {
                named(&prose, name, found);
                prose.clear();
            }
            prose += line;
            prose.push('\n');
        }
    }
    named(&prose, name, found);
}

/// The texts of a command and of those below it, of which its manual pages are made.
fn texts(command: &Command, path: &str, all: &mut Vec<(String, String)>) {
    let about = [command.get_about(), command.get_long_about(), command.get_after_help()];
    let options = command.get_arguments().flat_map(|arg| [arg.get_help(), arg.get_long_help()]);
    for text in about.into_iter().chain(options).flatten() {
        all.push((path.to_owned(), text.to_string()));
    }
    for one in command.get_subcommands() {
        texts(one, &format!("{path} {}", one.get_name()), all);
    }
}

/// The error of the parser if it does not take the command.
fn refusal(found: &DocumentedCommand) -> Option<String> {
    let words: Vec<&str> =
        found.words.iter().map(|word| if word == "COMMAND" { "status" } else { word }).collect();
    let parse = |words: &[&str]| Cli::command().try_get_matches_from(words).err();
    let e = parse(&words)?;
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return None,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if found.is_named =>
        {
            return None;
        }
        // An option without its value.
        ErrorKind::InvalidValue | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues
            if found.is_named && words.last().is_some_and(|word| word.starts_with("--")) =>
        {
            let whole: Vec<&str> = words.iter().copied().chain(["1"]).collect();
            let again = parse(&whole)?;
            if again.kind() == ErrorKind::MissingRequiredArgument {
                return None;
            }
        }
        _ => {}
    }
    Some(format!("{}: {}\n{e}", found.place, found.words.join(" ")))
}

fn check(found: &[DocumentedCommand], at_least: usize) {
    assert!(found.len() >= at_least, "{} commands only: how are they looked for?", found.len());
    let bad: Vec<String> = found.iter().filter_map(refusal).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn every_command_of_the_documents_is_taken() {
    for (name, at_least) in
        [("README.md", 15), ("docs/operations.md", 40), ("docs/configuration.md", 15)]
    {
        let mut found = Vec::new();
        of_document(name, &mut found);
        check(&found, at_least);
    }
}

#[test]
fn every_command_of_the_manual_pages_is_taken() {
    let (mut all, mut found) = (Vec::new(), Vec::new());
    texts(&Cli::command(), "forebay", &mut all);
    all.extend(
        entries().into_iter().map(|e| (e.name.to_owned(), format!("{} {}", e.what, e.says))),
    );
    assert!(all.len() > 150, "{}", all.len());
    for (place, text) in &all {
        named(text, place, &mut found);
        mentioned(text, place, &mut found);
    }
    check(&found, 20);
}

/// Commands that a text without backticks names: `forebay`, commands, and options behind them.
fn mentioned(text: &str, place: &str, found: &mut Vec<DocumentedCommand>) {
    let plain = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let words: Vec<&str> = plain.split_whitespace().collect();
    for (at, _) in words.iter().enumerate().filter(|(_, word)| **word == "forebay") {
        let (mut named, mut command) = (vec!["forebay".to_owned()], Cli::command());
        for word in &words[at + 1..] {
            let bare = word.trim_end_matches(['.', ',', ';', ':', ')', '\'']);
            match command.find_subcommand(bare).cloned() {
                Some(next) => command = next,
                None if bare.starts_with("--") => {}
                None => break,
            }
            named.push(bare.to_owned());
            if bare.len() < word.len() {
                break;
            }
        }
        let place = format!("{place}: {text}");
        assert!(named.len() > 1, "{place}: forebay has no command {:?}", words.get(at + 1));
        found.push(DocumentedCommand { place, words: named, is_named: true });
    }
}

#[test]
fn what_is_wrong_is_found() {
    let refused = |line: &str, is_named: bool| {
        let mut found = Vec::new();
        ours(line, "here", is_named, &mut found);
        assert!(!found.is_empty(), "{line}");
        found.iter().any(|one| refusal(one).is_some())
    };
    for line in [
        "forebay volume create vm1 --size 100G # a comment --wrong",
        "A=b sudo forebay mount vol0 /mnt --make ext4",
        "cd /x && forebay status --json | jq -e '.health == []'",
        "forebay config --example > forebay.toml",
    ] {
        assert!(!refused(line, false), "{line}");
    }
    for line in ["forebay volume delete", "forebay device", "forebay serve --config"] {
        assert!(!refused(line, true) && refused(line, false), "{line}");
    }
    for line in ["forebay volumes", "forebay status --all-of-it", "forebay gc vol0"] {
        assert!(refused(line, true) && refused(line, false), "{line}");
    }
}
