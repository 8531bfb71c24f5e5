//! `forebay clients`: who is connected over NBD.

use clap::Args;
use serde_json::Value;

use crate::cli::options::ClientOptions;
use crate::control::Request;
use crate::control::client::ask;
use crate::error::Result;
use crate::output::{print, print_json, table};

/// List the clients that are connected over NBD
///
/// A client over TLS is shown by the names of its certificate, or of its key.
#[derive(Args, Debug)]
pub struct Clients {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Clients {
    pub fn run(self) -> Result<()> {
        let clients = ask(&self.client.socket, &Request::Clients {})?;
        if self.json {
            return print_json(&clients);
        }
        match clients.as_array().map(Vec::as_slice) {
            Some([]) | None => print("no client is connected\n"),
            Some(clients) => print(&table(&rows(clients))),
        }
    }
}

fn rows(clients: &[Value]) -> Vec<Vec<String>> {
    let row = |client: &Value| {
        let tls = &client["tls"];
        let names = tls["names"].as_array().into_iter().flatten();
        let names: Vec<&str> = names.filter_map(Value::as_str).collect();
        let access = match (client["export"].is_null(), client["read_only"].as_bool()) {
            (true, _) => "-",
            (false, Some(true)) => "read",
            _ => "write",
        };
        vec![
            client["number"].to_string(),
            client["export"].as_str().unwrap_or("(connecting)").to_owned(),
            access.to_owned(),
            client["requests"].to_string(),
            tls["version"].as_str().unwrap_or("no").to_owned(),
            tls["proof"].as_str().unwrap_or("-").to_owned(),
            if names.is_empty() { "-".to_owned() } else { names.join(", ") },
        ]
    };
    let head = ["CLIENT", "VOLUME", "MAY", "REQUESTS", "TLS", "PROOF", "NAMES"];
    std::iter::once(head.map(str::to_owned).to_vec()).chain(clients.iter().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn people_read_it() {
        let text = table(&rows(&[
            json!({ "number": 7, "export": "vm1", "read_only": true, "requests": 3, "tls":
                    { "version": "TLSv1.3", "proof": "certificate", "names": ["a", "b"] } }),
            json!({ "number": 12, "export": null, "read_only": false, "requests": 0, "tls": null }),
        ]));
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["7", "vm1", "read", "3", "TLSv1.3", "certificate", "a,", "b"]);
        assert_eq!(lines[2], ["12", "(connecting)", "-", "0", "no", "-", "-"]);
    }
}
