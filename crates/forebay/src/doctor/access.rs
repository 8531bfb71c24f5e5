//! Checks of who may connect: TLS, and the modes of sockets.

use std::path::{Path, PathBuf};

use super::finding::{Finding, Level};
use crate::serve::health::expiry;

/// The way in which clients over TCP are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tls {
    /// There is no TLS, or clients need not have it.
    NotNeeded,
    /// Clients must have TLS, and any client may come.
    Anyone,
    /// Clients must have TLS, and prove who they are.
    Known,
}

/// A socket's mode and group.
#[derive(Clone, Debug)]
pub struct Permit {
    /// The name of what connects there: `NBD`, `control` or `HTTP`.
    pub what: &'static str,
    /// Permission bits.
    pub mode: u32,
    /// The reason why the group of the socket cannot be used, if it cannot.
    pub refused: Option<String>,
}

/// Everything that says who may connect.
#[derive(Clone, Debug)]
pub struct Access {
    /// The way in which clients over TCP are known.
    pub tls: Tls,
    /// The files of TLS that end soon, with the seconds that they have left, or the reason why TLS
    /// cannot be used; `None` if TLS is not set up.
    pub credentials: Option<Result<Vec<(PathBuf, i64)>, String>>,
    /// The permissions of the sockets.
    pub permits: Vec<Permit>,
}

/// Checks who may connect.
pub fn check(access: &Access) -> Vec<Finding> {
    let credentials = match &access.credentials {
        None => Vec::new(),
        Some(Ok(ends)) if ends.is_empty() => {
            vec![Finding::ok("tls", "its certificates and keys can be used")]
        }
        Some(Ok(ends)) => ends.iter().map(|(path, left_s)| ending(path, *left_s)).collect(),
        Some(Err(why)) => {
            let todo = "docs/operations.md shows how certificates and keys are made";
            vec![Finding::new(Level::Problem, "tls", why, todo)]
        }
    };
    credentials.into_iter().chain(access.permits.iter().flat_map(permit)).collect()
}

fn ending(path: &Path, left_s: i64) -> Finding {
    let level = if left_s < 0 { Level::Problem } else { Level::Warning };
    Finding::new(level, "tls", expiry::what(path, left_s), expiry::todo(path))
}

fn permit(one: &Permit) -> Option<Finding> {
    let Permit { what, mode, refused } = one;
    if let Some(why) = refused {
        let todo = "name a group that is there (getent group), and make the server's user a member";
        let found = format!("the socket for {what}: {why}");
        return Some(Finding::new(Level::Problem, "socket", found, todo));
    }
    (mode & 0o002 != 0).then(|| {
        let may = if *what == "NBD" { "read and write all volumes" } else { "do everything" };
        Finding::new(
            Level::Warning,
            "socket",
            format!("the socket for {what} has the mode {mode:04o}: all users here can {may}"),
            "set a group (socket_group) and the mode 0660, if not all of them may",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::has;
    use super::*;

    #[test]
    fn what_lets_others_in_is_told() {
        let permit = |what, mode, refused: Option<&str>| Permit {
            what,
            mode,
            refused: refused.map(str::to_owned),
        };
        let of = |credentials, permits| check(&Access { tls: Tls::Known, credentials, permits });
        assert_eq!(of(None, vec![permit("NBD", 0o660, None)]), []);
        let all = of(
            Some(Err("keys: no such file".into())),
            vec![permit("NBD", 0o666, None), permit("control", 0o660, Some("no group x"))],
        );
        assert!(has(&all, Level::Problem, &["tls", "no such file", "operations.md"]));
        assert!(has(&all, Level::Warning, &["0666", "all volumes", "socket_group"]));
        assert!(has(&all, Level::Problem, &["no group x", "getent"]));
        assert!(has(&of(Some(Ok(vec![])), vec![]), Level::Ok, &["tls"]));
        let ends = |left| of(Some(Ok(vec![("/t/ca-crl.pem".into(), left)])), vec![]);
        assert!(has(&ends(7), Level::Warning, &["tls", "ca-crl.pem ends in 7 s", "-gencrl"]));
        assert!(has(&ends(-7), Level::Problem, &["tls", "expired, 7 s ago", "without a restart"]));
    }
}
