//! `forebay man`: manual pages, made from the commands and from the table of settings.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::roff::{Inline, Roff, bold, roman};
use model::operations::{self, Block};

use crate::config::example::entries;
use crate::error::{CommandError, EXIT_STATUSES, Result};
use crate::output::print;

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "FOREBAY_SOCKET",
        "The control socket of the server, for commands that talk to one, unless --socket says it.",
    ),
    (
        "COLUMNS",
        "The width of tables, if it is more than 80. Without it and without a terminal, nothing is \
         shortened.",
    ),
    ("NO_COLOR", "If it is set and not empty, there are no colours, unless --color says so."),
    ("FOREBAY_LOG", "Which events a server logs, as --log-level; for other commands: warn."),
];

/// Write manual pages
///
/// Without a directory the page of the command itself is printed: forebay man | man -l -
#[derive(Args, Debug)]
#[command(hide = true)]
pub struct Man {
    /// The directory, which is made if there is none
    dir: Option<PathBuf>,
}

impl Man {
    /// `command`: the whole command line.
    pub fn run(self, command: Command) -> Result<()> {
        let mut command = without_help(command);
        command.build();
        let Some(dir) = self.dir else {
            return print(&String::from_utf8_lossy(&page(&command, "forebay", true)?));
        };
        let failed = |e: std::io::Error| CommandError::failed(dir.display(), e);
        fs::create_dir_all(&dir).map_err(failed)?;
        for (name, text) in pages(&command)? {
            fs::write(dir.join(name), text).map_err(failed)?;
        }
        Ok(())
    }
}

/// The command without its subcommands `help`, of which there is no page.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// All pages: their file names and texts.
fn pages(command: &Command) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut all = vec![
        (PathBuf::from("forebay.1"), page(command, "forebay", true)?),
        (PathBuf::from("forebay.toml.5"), of_file()?),
        (PathBuf::from("forebay-problems.7"), of_problems()?),
    ];
    for one in subcommands(command) {
        add(one, &format!("forebay-{}", one.get_name()), &mut all)?;
    }
    Ok(all)
}

fn add(command: &Command, name: &str, all: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<()> {
    all.push((Path::new(&format!("{name}.1")).to_owned(), page(command, name, false)?));
    for one in subcommands(command) {
        add(one, &format!("{name}-{}", one.get_name()), all)?;
    }
    Ok(())
}

/// The subcommands that have a page.
fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set())
}

fn failed(e: std::io::Error) -> CommandError {
    CommandError::failed("making a manual page", e)
}

/// The page of a command. That of `forebay` itself also says what holds for all.
fn page(command: &Command, name: &str, whole: bool) -> Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .source(format!("forebay {}", env!("CARGO_PKG_VERSION")))
        .manual("Forebay");
    let mut out = Vec::new();
    man.render_title(&mut out).map_err(failed)?;
    man.render_name_section(&mut out).map_err(failed)?;
    synopsis(command).to_writer(&mut out).map_err(failed)?;
    man.render_description_section(&mut out).map_err(failed)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut out).map_err(failed)?;
    }
    if subcommands(command).next().is_some() {
        man.render_subcommands_section(&mut out).map_err(failed)?;
    }
    let mut more = Roff::new();
    if whole {
        section(&mut more, "ENVIRONMENT", ENVIRONMENT.iter().map(|e| (e.0.to_owned(), e.1)));
    }
    let statuses = EXIT_STATUSES.iter().map(|(status, what)| (status.to_string(), *what));
    section(&mut more, "EXIT STATUS", statuses);
    let others = match whole {
        true => "forebay.toml(5), forebay-problems(7)",
        false => "forebay(1), forebay.toml(5), forebay-problems(7)",
    };
    more.control("SH", ["SEE ALSO"]).text([roman(others)]);
    more.to_writer(&mut out).map_err(failed)?;
    Ok(out)
}

/// The synopsis of a command, in the words of its --help.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for (i, line) in usage.trim_start_matches("Usage:").trim().lines().enumerate() {
        if i > 0 {
            roff.control("br", []);
        }
        roff.text([roman(line.trim())]);
    }
    roff
}

fn section<'a>(roff: &mut Roff, name: &str, rows: impl Iterator<Item = (String, &'a str)>) {
    roff.control("SH", [name]);
    for (term, what) in rows {
        roff.control("TP", []).text([bold(term)]).text([roman(what)]);
    }
}

/// The page of the configuration file.
fn of_file() -> Result<Vec<u8>> {
    let source = format!("forebay {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", ["FOREBAY.TOML", "5", "", &source, "Forebay"]);
    roff.control("SH", ["NAME"]).text([roman("forebay.toml - the configuration of a server")]);
    roff.control("SH", ["DESCRIPTION"]).text([roman(
        "forebay serve --config FILE reads this file, in TOML. Options of the command line take \
         precedence over it. Sizes are bytes, or text such as \"512M\" (powers of 1024); times are \
         text such as \"500ms\" or \"5s\". Relative paths are relative to the directory of the \
         file. SIGHUP has a server read its file again: what can change at once does, the log \
         names what needs a restart, and a file with an error changes nothing. A server without a \
         configuration file ends on SIGHUP.",
    )]);
    let mut before = None;
    for entry in entries() {
        if before != Some(entry.section) {
            let name = match entry.section {
                "" => "KEYS WITHOUT A SECTION".to_owned(),
                section => format!("[{section}]"),
            };
            roff.control("SH", [name.as_str()]);
            before = Some(entry.section);
        }
        roff.control("TP", []).text([bold(format!("{} = {}", entry.name, entry.value))]);
        roff.text([roman(format!("{}. {}", sentence(entry.what), entry.says))]);
    }
    roff.control("SH", ["SEE ALSO"]).text([roman("forebay(1), forebay-config(1)")]);
    let mut out = Vec::new();
    roff.to_writer(&mut out).map_err(failed)?;
    Ok(out)
}

/// The page of the problems that a server may have.
fn of_problems() -> Result<Vec<u8>> {
    let source = format!("forebay {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", ["FOREBAY-PROBLEMS", "7", "", &source, "Forebay"]);
    let name = "forebay-problems - what problems of a server mean, and what to do";
    roff.control("SH", ["NAME"]).text([roman(name)]);
    roff.control("SH", ["DESCRIPTION"]).text([roman(
        "forebay status names each problem that a server has. This page has a section for each; \
         forebay help PROBLEM shows one of them.",
    )]);
    for advice in operations::all() {
        roff.control("SH", [advice.page.as_str()]);
        for block in advice.blocks() {
            match block {
                Block::Paragraph(text) => roff.control("PP", []).text(spans(&text)),
                Block::Item(text) => roff.control("IP", ["-", "2"]).text(spans(&text)),
                Block::Code(lines) => {
                    roff.control("PP", []).control("EX", []);
                    for line in lines.lines() {
                        roff.text([roman(line)]);
                    }
                    roff.control("EE", [])
                }
            };
        }
    }
    roff.control("SH", ["SEE ALSO"]).text([roman("forebay(1), forebay-status(1)")]);
    let mut out = Vec::new();
    roff.to_writer(&mut out).map_err(failed)?;
    Ok(out)
}

/// A text of which the words between two stars, or between back quotes, are bold.
fn spans(text: &str) -> Vec<Inline> {
    let parts = text.split("**").flat_map(|part| part.split('`'));
    parts.enumerate().map(|(i, part)| if i % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// The text with a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;
    use crate::config::table::KEYS;

    fn text(pages: &[(PathBuf, Vec<u8>)], name: &str) -> String {
        let found = pages.iter().find(|(file, _)| file == Path::new(name));
        String::from_utf8(found.unwrap_or_else(|| panic!("no {name}")).1.clone()).unwrap()
    }

    #[test]
    fn each_command_has_a_page() {
        let leaf = Command::new("create")
            .about("Make one")
            .arg(
                Arg::new("size")
                    .long("size")
                    .help("How large")
                    .action(ArgAction::Set)
                    .required(true),
            )
            .arg(Arg::new("name").value_name("NAME").required(true));
        let hidden = Command::new("secret").hide(true);
        let volume = Command::new("volume").about("Volumes").subcommand(leaf);
        let mut whole = Command::new("forebay").about("All").subcommands([volume, hidden]);
        whole = without_help(whole);
        whole.build();
        let pages = pages(&whole).unwrap();
        assert_eq!(pages.len(), 5, "{:?}", pages.iter().map(|p| &p.0).collect::<Vec<_>>());
        let page = text(&pages, "forebay-volume-create.1");
        for word in
            ["FOREBAY\\-VOLUME\\-CREATE", "Make one", "How large", "EXIT STATUS", "SEE ALSO"]
        {
            assert!(
                page.contains(word) || page.contains(&word.replace('\\', "")),
                "{word}: {page}"
            );
        }
        assert!(page.replace("\\-", "-").contains("volume create --size <size> <NAME>"), "{page}");
        assert!(text(&pages, "forebay.1").contains("FOREBAY_SOCKET"));
        let problems = text(&pages, "forebay-problems.7").replace("\\-", "-");
        assert!(problems.contains("pool-full") && problems.contains("To do"), "{problems}");
        assert!(!problems.contains("**") && !problems.contains('`'), "{problems}");
    }

    #[test]
    fn every_setting_is_in_the_page_of_the_file() {
        let page = String::from_utf8(of_file().unwrap()).unwrap();
        for key in KEYS {
            let plain = page.replace("\\-", "-");
            assert!(plain.contains(&format!("{} = ", key.name)), "{}", key.name);
        }
    }
}
