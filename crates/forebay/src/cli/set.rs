//! `forebay set`: the settings of a running server.

use clap::Args;
use serde_json::Value;

use crate::cli::options::ClientOptions;
use crate::control::Request;
use crate::error::Result;
use crate::output::{print, print_json};
use crate::terminal::{Cell, Column, Look, Table};

/// Show or change the settings of a running server
///
/// Without a key: all settings, their values, what they can be, and where each value comes from
/// (default, configuration, option, set). With a key: that setting. With a key and a value: changes
/// it, at once, and until the server ends unless it is saved.
#[derive(Args, Debug)]
pub struct Set {
    /// A setting, as in cache.max_lag; without its section if only one setting has the name
    key: Option<String>,
    /// Its new value, as the configuration file has it: 10s, 64M, 40
    value: Option<String>,
    /// Write it to the configuration file too, so that it holds after a restart
    #[arg(long, requires = "value")]
    save: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Set {
    pub fn run(self) -> Result<()> {
        let Set { key, value, save, json, client } = self;
        let (Some(key), Some(value)) = (&key, value) else {
            let one = key.is_some();
            let shown = client.ask(&Request::Settings { key })?;
            return match (json, one) {
                (true, true) => print_json(&shown[0]),
                (true, false) => print_json(&shown),
                (false, true) => print(&long(&shown[0])),
                (false, false) => print(&list(&shown, &Look::of_stdout())),
            };
        };
        let request = Request::Set { key: key.clone(), value, save };
        let changed = client.ask(&request)?;
        if json { print_json(&changed) } else { print(&told(&changed)) }
    }
}

/// A text, or a number.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn list(all: &Value, look: &Look) -> String {
    let mut table = Table::new(&[
        Column::new("KEY"),
        Column::shortened("VALUE", 8),
        Column::new("FROM"),
        Column::new("CHANGES"),
        Column::wrapped("RANGE"),
    ]);
    for one in all.as_array().into_iter().flatten() {
        let fields = ["key", "value", "from", "changes", "range_text"];
        table.add(fields.map(|field| Cell::from(text(&one[field]))));
    }
    table.text(look)
}

fn long(one: &Value) -> String {
    let [key, value, range, default] =
        ["key", "value", "range_text", "default"].map(|field| text(&one[field]));
    let changes = match text(&one["changes"]).as_str() {
        "restart" => "changes with a restart",
        _ => "changes at once",
    };
    let (from, what) = (text(&one["from"]), text(&one["what"]));
    format!("{key} = {value} (from: {from})\n  {what}\n  {range}; default {default}; {changes}\n")
}

fn told(one: &Value) -> String {
    let [key, value, before] = ["key", "value", "before"].map(|field| text(&one[field]));
    let until = match one["saved"].as_bool() {
        Some(true) => "it is in the configuration file",
        _ => "until the server ends",
    };
    let note = one["note"].as_str().map_or(String::new(), |note| format!("{note}\n"));
    format!("{key} = {value} (it was {before}); {until}\n{note}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lag() -> Value {
        json!({
            "key": "cache.max_lag", "value": "10s", "default": "30s", "from": "set",
            "range_text": "100ms to 1h", "changes": "at once", "what": "how old it may be",
        })
    }

    #[test]
    fn people_read_it() {
        let number = json!({
            "key": "cache.dirty_nodes", "value": 99, "default": 4096, "from": "configuration",
            "range_text": "64 to 16777216", "changes": "restart", "what": "changed nodes",
        });
        let lines = list(&json!([lag(), number]), &Look { columns: 80, colour: false });
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
        let mut changed = lag();
        (changed["before"], changed["saved"]) = (json!("30s"), json!(false));
        let text = told(&changed);
        assert_eq!(text, "cache.max_lag = 10s (it was 30s); until the server ends\n");
        (changed["saved"], changed["note"]) = (json!(true), json!("and more"));
        assert!(told(&changed).ends_with("configuration file\nand more\n"));
    }
}
