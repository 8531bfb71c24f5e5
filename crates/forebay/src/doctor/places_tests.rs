use super::super::finding::has;
use super::*;

fn one(what: &'static str, state: SocketState, directory: Directory) -> Socket {
    Socket { what, path: format!("/run/f/{what}.sock").into(), state, directory }
}

fn access(tls: Tls) -> Access {
    Access { tls, credentials: None, permits: Vec::new() }
}

fn places(sockets: Vec<Socket>) -> Endpoints {
    Endpoints {
        sockets,
        tcp: Vec::new(),
        token: TokenState::None,
        hosts: false,
        access: access(Tls::NotNeeded),
    }
}

fn on(section: &'static str, address: &str, token: TokenState) -> Endpoints {
    let address = address.parse().unwrap();
    let tcp = vec![Tcp { section, address, taken: false, optional: false }];
    Endpoints { sockets: Vec::new(), tcp, token, hosts: false, access: access(Tls::NotNeeded) }
}

#[test]
fn sockets_that_can_be_made() {
    let all = check(&places(vec![
        one("NBD", SocketState::Free, Directory::Usable),
        one("control", SocketState::Free, Directory::IsMade),
    ]));
    assert!(all.len() == 2 && all.iter().all(|one| one.level == Level::Ok), "{all:?}");
}

#[test]
fn sockets_that_cannot() {
    for (state, directory, words) in [
        (SocketState::InTheWay, Directory::Usable, "in the way"),
        (SocketState::Free, Directory::Refused("Permission denied".into()), "Permission denied"),
    ] {
        let all = check(&places(vec![one("NBD", state, directory)]));
        assert!(has(&all, Level::Problem, &["/run/f/NBD.sock (NBD)", words]), "{all:?}");
    }
}

#[test]
fn sockets_with_a_server_and_without() {
    let both = |control| {
        let nbd = one("NBD", SocketState::Listening, Directory::Usable);
        places(vec![one("control", control, Directory::Usable), nbd])
    };
    let served = both(SocketState::Listening);
    assert!(served.server_runs());
    assert!(has(&check(&served), Level::Ok, &["a server listens"]));
    let left = both(SocketState::Stale);
    assert!(!left.server_runs());
    let all = check(&left);
    assert!(has(&all, Level::Note, &["control", "left behind", "replaces"]), "{all:?}");
    assert!(has(&all, Level::Note, &["something listens on", "forebay.socket"]), "{all:?}");
}

#[test]
fn tcp_without_protection() {
    let nbd = |address| check(&on("nbd", address, TokenState::None));
    assert!(has(&nbd("0.0.0.0:10809"), Level::Warning, &["0.0.0.0:10809", "without a password"]));
    assert!(has(&nbd("[::1]:10809"), Level::Note, &["all users of this machine"]));
    let http = |address, token| check(&on("http", address, token));
    assert!(has(&http("0.0.0.0:80", TokenState::Good), Level::Warning, &["not encrypted"]));
    assert!(has(&http("0.0.0.0:80", TokenState::None), Level::Warning, &["metrics and health"]));
    let all = http("127.0.0.1:80", TokenState::Good);
    assert!(all.len() == 1 && has(&all, Level::Ok, &["its owner alone"]), "{all:?}");
}

#[test]
fn ports_that_are_taken() {
    let mut places = on("http", "127.0.0.1:80", TokenState::IsMade);
    places.tcp[0].taken = true;
    assert!(has(&check(&places), Level::Warning, &["listens already"]));
    places.tcp[0].optional = true;
    assert!(has(&check(&places), Level::Note, &["goes on without"]));
    places.sockets = vec![one("control", SocketState::Listening, Directory::Usable)];
    assert!(check(&places).iter().all(|one| one.level == Level::Ok), "the server has it");
}

#[test]
fn tokens() {
    let bad = TokenState::Bad("others than its owner may use it".into());
    let all = check(&on("http", "127.0.0.1:80", bad.clone()));
    assert!(has(&all, Level::Problem, &["others than its owner", "chmod 600"]), "{all:?}");
    let all = check(&on("http", "127.0.0.1:80", TokenState::None));
    assert!(has(&all, Level::Note, &["without http.token_file"]), "{all:?}");
    let mut unused = places(Vec::new());
    unused.token = bad;
    assert!(has(&check(&unused), Level::Note, &["nothing asks for the token"]));
    (unused.token, unused.hosts) = (TokenState::None, true);
    assert!(has(&check(&unused), Level::Note, &["http.hosts"]));
}

#[test]
fn tcp_with_tls_is_as_it_should_be() {
    for (tls, level) in
        [(Tls::Known, Level::Ok), (Tls::Anyone, Level::Warning), (Tls::NotNeeded, Level::Warning)]
    {
        let places =
            Endpoints { access: access(tls), ..on("nbd", "10.0.0.1:10809", TokenState::None) };
        let all = check(&places);
        assert_eq!(all.iter().map(|one| one.level).collect::<Vec<_>>(), [level]);
    }
}
