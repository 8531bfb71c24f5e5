//! The checks of `forebay up` before it opens or makes anything: whether its configuration can hold
//! on this machine. A configuration that cannot is a misuse, and nothing was touched.
//!
//! The checks only look. A state that may be another one a moment later, such as an address that is
//! in use, is left to the code that listens there. `forebay serve` makes nothing, and does without:
//! when a machine starts, an address or a file may come later, and the service manager tries again
//! after a failure, not after a misuse.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use tls::Acceptor;

use crate::config::{HttpPlace, Sections, ServeConfig};
use crate::error::{CommandError, Result};
use crate::serve::http::token;

/// Fails where a group is not there, the files of TLS or the token cannot be used, or an address is
/// none of this machine. Blocks.
pub fn check(config: &ServeConfig) -> Result<()> {
    config.check_groups()?;
    let Sections { nbd, tls, http, .. } = &config.said;
    if config.said.has_tls() {
        Acceptor::new(&tls.credentials()).map_err(|e| CommandError::Usage(format!("TLS: {e}")))?;
    }
    for address in &nbd.listen {
        check_address("nbd.listen", *address)?;
    }
    for place in &http.listen {
        match place {
            // Without it the server goes on.
            HttpPlace::Tcp(_) if http.optional => {}
            HttpPlace::Tcp(address) => check_address("http.listen", *address)?,
            HttpPlace::Unix(_) | HttpPlace::None => {}
        }
    }
    match &http.token_file {
        Some(path) if !http.listen.is_empty() && (path.exists() || !http.make_token) => {
            token::read(path).map(drop).map_err(|e| CommandError::Usage(e.to_string()))
        }
        _ => Ok(()),
    }
}

/// Fails if this machine does not have an address.
fn check_address(key: &str, address: SocketAddr) -> Result<()> {
    // Any port: that of the address may be taken, by the service manager for this server even.
    match TcpListener::bind(SocketAddr::new(address.ip(), 0)) {
        Err(e) if e.kind() == ErrorKind::AddrNotAvailable => Err(CommandError::Usage(format!(
            "{key}: {address} is no address of this machine (ip address lists them); 0.0.0.0 and \
             [::] stand for all, see forebay config --example"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_another_machine_is_a_misuse() {
        let check = |text: &str| check_address("nbd.listen", text.parse().unwrap());
        // Of a network that is for documents.
        let e = check("192.0.2.1:10809").unwrap_err();
        assert!(e.exit_status() == 2 && e.to_string().contains("192.0.2.1:10809"), "{e}");
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        check(&taken.local_addr().unwrap().to_string()).unwrap();
        check("0.0.0.0:1").unwrap();
    }
}
