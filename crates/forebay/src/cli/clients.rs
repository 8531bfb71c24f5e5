//! `forebay clients`: who is connected over NBD.

use std::cmp::Reverse;

use clap::Args;
use model::request;
use model::volume::{Client, ClientProcess};
use nix::unistd::{Uid, User};

use crate::cli::options::ClientOptions;
use crate::cli::volumes::{SHOWN, not_shown};
use crate::error::Result;
use crate::output::{is_json, print, print_json};
use crate::terminal::{Cell, Column, Look, Table, is_piped};

/// List the clients that are connected over NBD
///
/// A client over TLS is shown by the names of its certificate, or of its key, and one over TCP by
/// its address; --json has its port, too. One over a unix socket is shown by its program, the
/// number of its process and its user.
#[derive(Args, Debug)]
pub struct Clients {
    /// All of them, however many there are; what does not go to a terminal has all
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Clients {
    pub fn run(self) -> Result<()> {
        let clients = self.client.ask(request::Clients {})?;
        if is_json() {
            return print_json(&clients);
        }
        if clients.is_empty() {
            return print(
                "no client is connected; forebay config shows where the server listens\n",
            );
        }
        print(&text(&clients, self.all || is_piped(), &Look::of_stdout()))
    }
}

/// Clients with the most requests under way first.
fn text(clients: &[Client], all: bool, look: &Look) -> String {
    let mut ranked: Vec<&Client> = clients.iter().collect();
    ranked.sort_by_key(|client| Reverse(client.requests));
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
        let tls = client.tls.as_ref();
        let names = tls.into_iter().flat_map(|tls| &tls.names).map(String::as_str);
        let mut names: Vec<String> = names.chain(host(client)).map(str::to_owned).collect();
        names.extend(client.process.as_ref().map(process));
        let access = match (&client.export, client.read_only) {
            (None, _) => "-",
            (Some(_), true) => "read",
            (Some(_), false) => "write",
        };
        table.add([
            Cell::from(client.number.to_string()),
            client.export.as_deref().unwrap_or("(connecting)").into(),
            access.into(),
            client.requests.to_string().into(),
            tls.map_or("no", |tls| &tls.version).into(),
            tls.map_or("-", |tls| tls.proof.word()).into(),
            if names.is_empty() { "-".to_owned() } else { names.join(", ") }.into(),
        ]);
    }
    table.text(look) + &not_shown(hidden, "clients", "forebay clients --all", look)
}

/// The process of a client, and its user.
fn process(of: &ClientProcess) -> String {
    let user = User::from_uid(Uid::from_raw(of.uid)).ok().flatten();
    let user = user.map_or_else(|| of.uid.to_string(), |user| user.name);
    let program = of.program.as_deref().unwrap_or("process");
    format!("{program} {}, user {user}", of.pid)
}

/// The host of a client, without its port, for which a line has no room.
fn host(client: &Client) -> Option<&str> {
    let (host, _) = client.address.as_deref()?.rsplit_once(':')?;
    Some(host.trim_matches(['[', ']']))
}

#[cfg(test)]
mod tests {
    use model::volume::{ClientTls, Proof};

    use super::*;
    use crate::terminal::text::width;

    const LOOK: Look = Look { columns: 80, colour: false };

    fn tls(names: &[&str]) -> ClientTls {
        ClientTls {
            version: "TLSv1.3".into(),
            proof: Proof::Certificate,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..ClientTls::default()
        }
    }

    #[test]
    fn people_read_it() {
        let clients = [
            Client {
                number: 7,
                address: Some("10.0.0.5:4711".into()),
                process: None,
                export: Some("vm1".into()),
                read_only: true,
                requests: 3,
                tls: Some(tls(&["a"])),
                connected_seconds: None,
            },
            Client { number: 12, ..Client::default() },
            Client {
                number: 13,
                process: Some(ClientProcess { pid: 42, uid: 0, program: Some("fio".into()) }),
                ..Client::default()
            },
        ];
        let text = text(&clients, false, &LOOK);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0][3..5], ["IN", "FLIGHT"], "volume list has REQUESTS since the start");
        assert_eq!(lines[1], ["7", "vm1", "read", "3", "TLSv1.3", "certificate", "a,", "10.0.0.5"]);
        assert_eq!(lines[2], ["12", "(connecting)", "-", "0", "no", "-", "-"]);
        assert_eq!(lines[3][6..], ["fio", "42,", "user", "root"]);
    }

    #[test]
    fn many_fit_and_the_busy_ones_are_first() {
        let one = |number: u64| Client {
            number,
            address: Some("[2001:db8:1234:5678:9abc:def0:1234:5678]:54321".into()),
            process: None,
            export: Some("v".repeat(64)),
            read_only: false,
            requests: number % 50,
            tls: Some(tls(&["a.very.long.name.of.a.client.example.org", "other.name.example.org"])),
            connected_seconds: None,
        };
        let clients: Vec<Client> = (0..256).map(one).collect();
        let few = text(&clients, false, &LOOK);
        assert!(few.lines().all(|line| width(line) <= 80), "{few}");
        assert!(few.lines().nth(1).is_some_and(|line| line.starts_with("49 ")), "{few}");
        assert!(few.ends_with("236 more clients are not shown: forebay clients --all\n"), "{few}");
        assert_eq!(text(&clients, true, &LOOK).matches("certificate").count(), 256);
    }
}
