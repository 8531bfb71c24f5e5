//! `forebay set`: the settings of a running server.

use clap::Args;
use model::request;
use model::setting::{Changes, Setting, SettingChange};

use crate::cli::options::ClientOptions;
use crate::error::Result;
use crate::output::{is_json, print, print_json};
use crate::terminal::{Cell, Column, Look, Table};

/// Show or change the settings of a running server
///
/// Without a key: all settings, their values, what they can be, and where each value comes from
/// (default, configuration, option, set). With a key: that setting. With a key and a value: changes
/// it, at once, and until the server ends unless it is saved.
#[derive(Args, Debug)]
pub struct Set {
    /// A setting, as in cache.max_lag; without its section if only one setting has the name
    #[arg(add = crate::cli::candidates::settings())]
    key: Option<String>,
    /// New value of the setting, as the configuration file has it: 10s, 64M, 40
    value: Option<String>,
    /// Write it to the configuration file too, so that it holds after a restart
    #[arg(long, requires = "value")]
    save: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Set {
    pub fn run(self) -> Result<()> {
        let Set { key, value, save, client } = self;
        let (key, value) = match (key, value) {
            (Some(key), Some(value)) => (key, value),
            (key, _) => return show(&client, key),
        };
        let request = request::Set { key, value, save };
        let changed = client.ask(request)?;
        if is_json() { print_json(&changed) } else { print(&told(&changed)) }
    }
}

/// Shows all settings, or one.
fn show(client: &ClientOptions, key: Option<String>) -> Result<()> {
    let is_one = key.is_some();
    let shown = client.ask(request::Settings { key })?;
    match (is_json(), shown.first().filter(|_| is_one)) {
        (true, Some(one)) => print_json(one),
        (true, None) => print_json(&shown),
        (false, Some(one)) => print(&long(one)),
        (false, None) => print(&list(&shown, &Look::of_stdout())),
    }
}

fn list(all: &[Setting], look: &Look) -> String {
    let mut table = Table::new(&[
        Column::new("KEY"),
        Column::shortened("VALUE", 8),
        Column::new("FROM"),
        Column::new("CHANGES"),
        Column::wrapped("RANGE"),
    ]);
    for one in all {
        table.add([
            Cell::from(&one.key),
            one.value.to_string().into(),
            one.from.word().into(),
            one.changes.word().into(),
            Cell::from(&one.range_text),
        ]);
    }
    table.text(look)
}

fn long(one: &Setting) -> String {
    let Setting { key, value, default, from, range_text: range, what, .. } = one;
    let changes = match one.changes {
        Changes::Restart => "changes with a restart",
        Changes::AtOnce => "changes at once",
    };
    format!("{key} = {value} (from: {from})\n  {what}\n  {range}; default {default}; {changes}\n")
}

fn told(changed: &SettingChange) -> String {
    let SettingChange { setting: Setting { key, value, .. }, before, saved, note } = changed;
    let until = match saved {
        true => "it is in the configuration file",
        false => "until the server ends",
    };
    let note = note.as_ref().map_or(String::new(), |note| format!("{note}\n"));
    format!("{key} = {value} (it was {before}); {until}\n{note}")
}

#[cfg(test)]
mod tests {
    use model::setting::{SettingValue, Source};

    use super::*;

    fn words(text: &str) -> SettingValue {
        SettingValue::Text(text.into())
    }

    fn lag() -> Setting {
        Setting {
            key: "cache.max_lag".into(),
            value: words("10s"),
            default: words("30s"),
            from: Source::Set,
            range_text: "100ms to 1h".into(),
            changes: Changes::AtOnce,
            what: "how old it may be".into(),
            ..Setting::default()
        }
    }

    #[test]
    fn people_read_it() {
        let number = Setting {
            key: "cache.dirty_nodes".into(),
            value: SettingValue::Number(99),
            default: SettingValue::Number(4096),
            from: Source::File,
            range_text: "64 to 16777216".into(),
            changes: Changes::Restart,
            what: "changed nodes".into(),
            ..Setting::default()
        };
        let lines = list(&[lag(), number.clone()], &Look { columns: 80, colour: false });
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(
            lines,
            [
                "KEY                VALUE  FROM           CHANGES  RANGE",
                "cache.max_lag      10s    set            at once  100ms to 1h",
                "cache.dirty_nodes  99     configuration  restart  64 to 16777216",
            ]
        );
        let one = long(&number);
        assert!(one.starts_with("cache.dirty_nodes = 99 (from: configuration)\n"), "{one}");
        assert!(one.contains("default 4096; changes with a restart"), "{one}");
    }

    #[test]
    fn a_change_says_how_long_it_holds() {
        let mut changed =
            SettingChange { setting: lag(), before: words("30s"), saved: false, note: None };
        let text = told(&changed);
        assert_eq!(text, "cache.max_lag = 10s (it was 30s); until the server ends\n");
        (changed.saved, changed.note) = (true, Some("and more".into()));
        assert!(told(&changed).ends_with("configuration file\nand more\n"));
    }
}
