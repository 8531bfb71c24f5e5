//! `forebay clients`: who is connected over NBD.

use std::cmp::Reverse;

use clap::Args;
use serde_json::Value;

use crate::cli::options::ClientOptions;
use crate::cli::volumes::{SHOWN, not_shown};
use crate::control::Request;
use crate::error::Result;
use crate::output::{print, print_json};
use crate::terminal::{Column, Look, Table};

/// List the clients that are connected over NBD
///
/// A client over TLS is shown by the names of its certificate, or of its key, and one over TCP by
/// its address; --json has its port, too.
#[derive(Args, Debug)]
pub struct Clients {
    /// All of them, however many there are
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Clients {
    pub fn run(self) -> Result<()> {
        let clients = self.client.ask(&Request::Clients {})?;
        if self.json {
            return print_json(&clients);
        }
        match clients.as_array().map(Vec::as_slice) {
            Some([]) | None => {
                print("no client is connected; forebay config shows where the server listens\n")
            }
            Some(clients) => print(&text(clients, self.all, &Look::of_stdout())),
        }
    }
}

/// Clients with the most requests under way first.
fn text(clients: &[Value], all: bool, look: &Look) -> String {
    let mut ranked: Vec<&Value> = clients.iter().collect();
    ranked.sort_by_key(|client| Reverse(client["requests"].as_u64()));
    let hidden = if all { 0 } else { ranked.len().saturating_sub(SHOWN) };
    ranked.truncate(ranked.len() - hidden);
    let mut table = Table::new(&[
        Column::new("CLIENT"),
        Column::shortened("VOLUME", 12),
        Column::new("MAY"),
        Column::new("IN FLIGHT"),
        Column::new("TLS"),
        Column::new("PROOF"),
        Column::wrapped("WHO"),
    ]);
    for client in ranked {
        let tls = &client["tls"];
        let names = tls["names"].as_array().into_iter().flatten();
        let names: Vec<&str> = names.filter_map(Value::as_str).chain(host(client)).collect();
        let access = match (client["export"].is_null(), client["read_only"].as_bool()) {
            (true, _) => "-",
            (false, Some(true)) => "read",
            _ => "write",
        };
        table.add([
            client["number"].to_string().into(),
            client["export"].as_str().unwrap_or("(connecting)").into(),
            access.into(),
            client["requests"].to_string().into(),
            tls["version"].as_str().unwrap_or("no").into(),
            tls["proof"].as_str().unwrap_or("-").into(),
            if names.is_empty() { "-".to_owned() } else { names.join(", ") }.into(),
        ]);
    }
    table.text(look) + &not_shown(hidden, "clients", "forebay clients --all", look)
}

/// Where a client is, without its port, for which a line has no room.
fn host(client: &Value) -> Option<&str> {
    let (host, _) = client["address"].as_str()?.rsplit_once(':')?;
    Some(host.trim_matches(['[', ']']))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::text::width;

    const LOOK: Look = Look { columns: 80, colour: false };

    #[test]
    fn people_read_it() {
        let clients = [
            json!({ "number": 7, "export": "vm1", "read_only": true, "requests": 3,
                    "address": "10.0.0.5:4711", "tls":
                    { "version": "TLSv1.3", "proof": "certificate", "names": ["a"] } }),
            json!({ "number": 12, "export": null, "read_only": false, "requests": 0, "tls": null }),
        ];
        let text = text(&clients, false, &LOOK);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0][3..5], ["IN", "FLIGHT"], "volume list has REQUESTS since the start");
        assert_eq!(lines[1], ["7", "vm1", "read", "3", "TLSv1.3", "certificate", "a,", "10.0.0.5"]);
        assert_eq!(lines[2], ["12", "(connecting)", "-", "0", "no", "-", "-"]);
    }

    #[test]
    fn many_fit_and_the_busy_ones_are_first() {
        let one = |number: u64| {
            json!({ "number": number, "export": "v".repeat(64), "read_only": false,
                "address": "[2001:db8:1234:5678:9abc:def0:1234:5678]:54321",
                "requests": number % 50, "tls": { "version": "TLSv1.3", "proof": "certificate",
                "names": ["a.very.long.name.of.a.client.example.org", "other.name.example.org"] } })
        };
        let clients: Vec<Value> = (0..256).map(one).collect();
        let few = text(&clients, false, &LOOK);
        assert!(few.lines().all(|line| width(line) <= 80), "{few}");
        assert!(few.lines().nth(1).is_some_and(|line| line.starts_with("49 ")), "{few}");
        assert!(few.ends_with("236 more clients are not shown: forebay clients --all\n"), "{few}");
        assert_eq!(text(&clients, true, &LOOK).matches("certificate").count(), 256);
    }
}
