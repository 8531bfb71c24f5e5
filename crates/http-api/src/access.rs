//! Whether a client may ask: the token, and the name by which it calls the server.
//!
//! Fault model: a client on TCP may be a browser that a foreign page directs here. A page whose own
//! name was made to lead to this address (DNS rebinding) gives itself away by that name in `Host`.
//! Addresses and `localhost` cannot be made to lead elsewhere. A page of another origin cannot read
//! answers, but it can have a browser send requests, also to the unix socket where that was made to
//! be a port (`ssh -L`): the browser says in `Origin` whose page it was. So what comes from a
//! browser there has to name the server rightly, too.

use std::hint::black_box;
use std::net::IpAddr;

use axum::http::{HeaderMap, Method, header, uri};
use model::{Failure, FailureKind};

/// The secret text that clients have to know.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token of this text. `None` where it is shorter than 16 characters or has others than
    /// visible ones of ASCII.
    pub fn new(text: &str) -> Option<Token> {
        let visible = text.bytes().all(|b| b.is_ascii_graphic());
        (visible && text.len() >= 16).then(|| Token(text.to_owned()))
    }

    /// Compares in a time that does not depend on where the difference is.
    fn is(&self, other: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differing = own.iter().zip(other).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        own.len() == other.len() && differing == 0
    }
}

/// The socket over which a client comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientSocket {
    /// The unix socket, which belongs to one user.
    Unix,
    /// TCP, where the client can be any.
    Tcp,
}

/// The rules that say who may ask for what.
#[derive(Clone, Default)]
pub struct Rules {
    /// The token that clients on TCP need; without one they have the basics only.
    pub token: Option<Token>,
    /// Names of the server beside `localhost` and addresses.
    pub hosts: Vec<String>,
}

/// The right of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// Everything.
    All,
    /// The basics, without names of files.
    Basics,
}

impl Rules {
    /// Returns the right of a client. Errors: `unauthorized` for a wrong token.
    pub fn grant(&self, via: ClientSocket, headers: &HeaderMap) -> Result<Grant, Failure> {
        if via == ClientSocket::Unix {
            return Ok(Grant::All);
        }
        match (&self.token, bearer(headers)) {
            (None, _) => Ok(Grant::Basics),
            (Some(token), Some(given)) if token.is(given) => Ok(Grant::All),
            (Some(_), Some(_)) => {
                Err(Failure::new(FailureKind::Unauthorized, "the token is not the right one"))
            }
            (Some(_), None) => Err(Failure::new(
                FailureKind::Unauthorized,
                "a token is needed: send the header Authorization: Bearer TOKEN",
            )),
        }
    }

    /// Checks that a request that changes something comes from a page of this server, if it is one
    /// of a page. Errors: `forbidden`.
    pub fn check_origin(&self, method: &Method, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        if method.is_safe() {
            return Ok(());
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let ours = |at: &str| {
            at.eq_ignore_ascii_case(host)
                || self.hosts.iter().any(|name| name.eq_ignore_ascii_case(without_port(at)))
        };
        match origin {
            Some((_, at)) if ours(at) => Ok(()),
            _ => Err(Failure::new(
                FailureKind::Forbidden,
                "a page of another origin changes nothing here",
            )),
        }
    }

    /// Checks that the server has the name by which a client on TCP, or a browser, asks for it.
    /// Errors: `forbidden`.
    pub fn check_name(
        &self,
        via: ClientSocket,
        headers: &HeaderMap,
        authority: Option<&uri::Authority>,
    ) -> Result<(), Failure> {
        if via == ClientSocket::Unix && !is_of_a_browser(headers) {
            return Ok(());
        }
        let refuse = |text: &str| Err(Failure::new(FailureKind::Forbidden, text));
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return refuse("a request has one header Host");
        };
        let Ok(host) = host.to_str() else { return refuse("the header Host is not readable") };
        if self.is_ours(host) && authority.is_none_or(|a| self.is_ours(a.as_str())) {
            return Ok(());
        }
        refuse(
            "the server does not have the name by which it was asked for: use an address or \
             localhost, or add the name to hosts in [http]",
        )
    }

    /// Whether `HOST` or `HOST:PORT` names this server.
    fn is_ours(&self, text: &str) -> bool {
        let host = without_port(text);
        // A name that ends with a dot is the same one, from the root of all names down.
        let host = host.strip_suffix('.').unwrap_or(host);
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let named = |name: &str| name.eq_ignore_ascii_case(host);
        bare.parse::<IpAddr>().is_ok() || named("localhost") || self.hosts.iter().any(|h| named(h))
    }
}

/// Whether a request bears the marks of a browser: the page decides by which name it asks, and the
/// owner of that name to what it leads.
fn is_of_a_browser(headers: &HeaderMap) -> bool {
    let is_mark = |name: &header::HeaderName| name.as_str().starts_with("sec-fetch-");
    headers.contains_key(header::ORIGIN) || headers.keys().any(is_mark)
}

/// `HOST` of `HOST:PORT`.
fn without_port(text: &str) -> &str {
    match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => text,
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules { token: Token::new("0123456789abcdef"), hosts: vec!["box.lan".into()] }
    }

    fn asked(
        rules: &Rules,
        via: ClientSocket,
        pairs: &[(&'static str, &'static str)],
    ) -> Result<Grant, FailureKind> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        let named = rules.check_name(via, &headers, None);
        named.and_then(|()| rules.grant(via, &headers)).map_err(|e| e.kind)
    }

    #[test]
    fn names_of_others_are_refused() {
        let right = ("authorization", "Bearer 0123456789abcdef");
        let of_us =
            ["localhost", "LOCALHOST:80", "127.0.0.1:7", "[::1]:7", "10.0.0.7", "box.lan:1"];
        for host in of_us.into_iter().chain(["localhost.", "localhost.:80", "box.lan."]) {
            assert_eq!(
                asked(&rules(), ClientSocket::Tcp, &[("host", host), right]),
                Ok(Grant::All),
                "{host}"
            );
        }
        let of_others = ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io"];
        for host in of_others.into_iter().chain(["", ".", "localhost..", "box.lan..:1"]) {
            let got = asked(&rules(), ClientSocket::Tcp, &[("host", host), right]);
            assert_eq!(got, Err(FailureKind::Forbidden), "{host}");
        }
        let two = [("host", "localhost"), ("host", "localhost"), right];
        assert!(asked(&rules(), ClientSocket::Tcp, &two).is_err());
        assert!(asked(&rules(), ClientSocket::Tcp, &[right]).is_err());
        assert_eq!(asked(&rules(), ClientSocket::Unix, &[("host", "any.name")]), Ok(Grant::All));
        // A port that leads to the unix socket, and a page whose name leads to that port.
        for mark in [("origin", "http://evil.example:8080"), ("sec-fetch-site", "same-origin")] {
            for (host, expected) in [
                ("evil.example:8080", Err(FailureKind::Forbidden)),
                ("localhost:8080", Ok(Grant::All)),
            ] {
                assert_eq!(
                    asked(&rules(), ClientSocket::Unix, &[("host", host), mark]),
                    expected,
                    "{host}"
                );
            }
        }
    }

    #[test]
    fn pages_of_others_change_nothing() {
        let asked = |method: Method, origin: &str, host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("host", host.parse().unwrap());
            headers.insert("origin", origin.parse().unwrap());
            rules().check_origin(&method, &headers).is_ok()
        };
        assert!(asked(Method::POST, "http://localhost:7", "localhost:7"));
        assert!(asked(Method::POST, "https://box.lan", "127.0.0.1:7"));
        assert!(asked(Method::GET, "http://evil.example", "localhost:7"));
        for origin in ["http://evil.example", "http://localhost:8", "null", "localhost:7", ""] {
            assert!(!asked(Method::POST, origin, "localhost:7"), "{origin}");
        }
        assert!(rules().check_origin(&Method::DELETE, &HeaderMap::new()).is_ok());
    }

    #[test]
    fn the_token_is_compared_whole() {
        let host = ("host", "localhost");
        for wrong in
            ["Bearer 0123456789abcdeg", "Bearer 0123456789abcde", "Bearer ", "Basic x", "x"]
        {
            let got = asked(&rules(), ClientSocket::Tcp, &[host, ("authorization", wrong)]);
            assert_eq!(got, Err(FailureKind::Unauthorized), "{wrong}");
        }
        assert_eq!(asked(&rules(), ClientSocket::Tcp, &[host]), Err(FailureKind::Unauthorized));
        let spelled = [host, ("authorization", "bearer  0123456789abcdef")];
        assert_eq!(asked(&rules(), ClientSocket::Tcp, &spelled), Ok(Grant::All));
        assert_eq!(asked(&Rules::default(), ClientSocket::Tcp, &[host]), Ok(Grant::Basics));
        assert!(Token::new("short").is_none() && Token::new("has a space in the middle").is_none());
    }
}
