//! The rights of clients over TLS: rules that go by the names that clients have proved.

use nbd::Peer;
use wildmatch::WildMatch;

/// A rule: the rights of clients of some names to volumes of some names. In both `*` stands for any
/// text and `?` for one character.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// A name of a client: of its certificate, or of its key. `*` is any client, also one that has
    /// proved no name.
    pub client: String,
    /// The names of the volumes.
    pub volumes: Vec<String>,
    /// True if the clients may read the volumes, and change nothing.
    pub read_only: bool,
}

/// The right of a client to a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Grant {
    /// The client does not know of the volume.
    Nothing,
    /// The client may read the volume.
    Read,
    /// The client may change the volume.
    Write,
}

/// The rules of a server. Without any, all clients may change all volumes. A client may do what one
/// of its rules gives.
#[derive(Default)]
pub struct Access(Vec<Pattern>);

struct Pattern {
    client: WildMatch,
    volumes: Vec<WildMatch>,
    grant: Grant,
}

impl Access {
    /// The rights that these rules give.
    pub fn by(rules: &[Rule]) -> Access {
        let pattern = |rule: &Rule| Pattern {
            client: WildMatch::new(&rule.client),
            volumes: rule.volumes.iter().map(|name| WildMatch::new(name)).collect(),
            grant: if rule.read_only { Grant::Read } else { Grant::Write },
        };
        Access(rules.iter().map(pattern).collect())
    }

    /// Returns the right of a client to a volume. A client without TLS comes over a unix socket, or
    /// where the server was told not to ask who comes: no rule holds for it.
    pub fn grant(&self, peer: Option<&Peer>, volume: &str) -> Grant {
        let Some(peer) = peer.filter(|_| !self.0.is_empty()) else { return Grant::Write };
        let of_client = |pattern: &&Pattern| match &peer.names[..] {
            [] => pattern.client.matches("") && pattern.client.pattern() == "*",
            names => names.iter().any(|name| pattern.client.matches(name)),
        };
        let of_volume = |pattern: &&Pattern| pattern.volumes.iter().any(|v| v.matches(volume));
        let grants = self.0.iter().filter(of_client).filter(of_volume).map(|one| one.grant);
        grants.max().unwrap_or(Grant::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(client: &str, volumes: &[&str], read_only: bool) -> Rule {
        let volumes = volumes.iter().map(|name| (*name).to_owned()).collect();
        Rule { client: client.into(), volumes, read_only }
    }

    fn peer(names: &[&str]) -> Peer {
        Peer {
            version: "TLSv1.3",
            cipher: "any",
            proof: nbd::Proof::Certificate,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn a_client_has_what_one_of_its_rules_gives() {
        let access = Access::by(&[
            rule("vm1", &["vm1-*", "shared"], false),
            rule("vm?", &["iso"], true),
            rule("*.lan", &["*"], true),
            rule("admin", &["iso"], false),
            rule("*", &["public"], true),
        ]);
        use Grant::{Nothing, Read, Write};
        for (names, volume, grant) in [
            (&["vm1"][..], "vm1-root", Write),
            (&["vm1"], "shared", Write),
            (&["vm1"], "iso", Read),
            (&["vm12"], "iso", Nothing),
            (&["vm2"], "vm1-root", Nothing),
            (&["VM1"], "vm1-root", Nothing),
            (&["box.lan"], "vm1-root", Read),
            (&["x", "vm1"], "vm1-root", Write),
            (&["vm3", "admin"], "iso", Write),
            (&["anybody"], "public", Read),
            (&["anybody"], "iso", Nothing),
            (&[], "public", Read),
            (&[], "iso", Nothing),
        ] {
            assert_eq!(access.grant(Some(&peer(names)), volume), grant, "{names:?} {volume}");
        }
        assert_eq!(access.grant(None, "vm1-root"), Write, "over a unix socket");
    }

    #[test]
    fn without_rules_all_may_do_all() {
        assert_eq!(Access::default().grant(Some(&peer(&[])), "v"), Grant::Write);
    }

    #[test]
    fn a_client_without_a_name_has_only_what_is_for_all() {
        let access = Access::by(&[rule("?", &["a"], false), rule("", &["b"], false)]);
        for volume in ["a", "b"] {
            assert_eq!(access.grant(Some(&peer(&[])), volume), Grant::Nothing);
        }
    }
}
