//! Files of TLS that are about to end, have ended, or cannot be read again.

use std::path::Path;

use base::counted;
use model::status::TlsStatus;

use crate::units::human_seconds;

const DAY: u64 = 86_400;

/// Returns all that is wrong with the files, and what to do about each.
pub fn problems(tls: &TlsStatus) -> Vec<(String, String)> {
    let mut all = Vec::new();
    if let Some(why) = &tls.refused {
        let what = format!("the files of TLS cannot be read again, those before are kept: {why}");
        let todo = "mend the file now: the server does not start with it; it is looked at every 10 \
                    seconds";
        all.push((what, todo.to_owned()));
    }
    all.extend(tls.files.iter().filter(|file| file.ends_soon).map(|file| {
        let path = Path::new(&file.path);
        (what(path, file.ends_in_s), todo(path))
    }));
    all
}

/// That a file ends in so many seconds, or has ended, and what that does.
pub fn what(path: &Path, left_s: i64) -> String {
    let ago = left_s.unsigned_abs();
    let span = match ago / DAY {
        0 | 1 => human_seconds(ago),
        days => counted(days, "day", "days"),
    };
    let does = match of(path) {
        CertificateKind::List => "clients with a certificate are refused",
        CertificateKind::Authority => "clients with certificates of this authority are refused",
        CertificateKind::Server => "clients refuse the server",
    };
    let (path, name) = (path.display(), of(path).name());
    match left_s < 0 {
        true => format!("{name} {path} has expired, {span} ago: {does}"),
        false => format!("{name} {path} ends in {span}: then {does}"),
    }
}

/// Returns what to do about a file that ends or has ended.
pub fn todo(path: &Path) -> String {
    let make = match of(path) {
        CertificateKind::List => "have the authority make a new list (openssl ca -gencrl)",
        CertificateKind::Authority | CertificateKind::Server => "have the authority sign a new one",
    };
    format!("{make} and put it in its place: it is read within 10 seconds, without a restart")
}

#[derive(Clone, Copy)]
enum CertificateKind {
    List,
    Authority,
    Server,
}

impl CertificateKind {
    fn name(self) -> &'static str {
        match self {
            CertificateKind::List => "the list of revoked certificates",
            CertificateKind::Authority => "the authority's certificate",
            CertificateKind::Server => "the server's certificate",
        }
    }
}

fn of(path: &Path) -> CertificateKind {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("ca-crl.pem") => CertificateKind::List,
        Some("ca-cert.pem") => CertificateKind::Authority,
        _ => CertificateKind::Server,
    }
}

#[cfg(test)]
mod tests {
    use model::status::TlsFile;

    use super::*;

    #[test]
    fn files_that_end_are_told_with_what_it_does() {
        let file = |name: &str, ends_in_s: i64, ends_soon: bool| TlsFile {
            file: name.to_owned(),
            path: format!("/t/{name}"),
            ends_in_s,
            ends_soon,
            ..Default::default()
        };
        let tls = TlsStatus {
            refused: Some("/t/server-key.pem: nonsense".to_owned()),
            files: vec![
                file("server-cert.pem", 13 * 86_400 + 5, true),
                file("ca-cert.pem", -7200, true),
                file("ca-crl.pem", -2 * 86_400, true),
                file("other", 1, false),
            ],
        };
        let all: Vec<String> = problems(&tls).into_iter().map(|(what, _)| what).collect();
        let expected = [
            "the files of TLS cannot be read again, those before are kept: /t/server-key.pem: \
             nonsense",
            "the server's certificate /t/server-cert.pem ends in 13 days: then clients refuse the \
             server",
            "the authority's certificate /t/ca-cert.pem has expired, 2 h 0 min ago: clients with \
             certificates of this authority are refused",
            "the list of revoked certificates /t/ca-crl.pem has expired, 2 days ago: clients with \
             a certificate are refused",
        ];
        assert_eq!(all, expected);
        assert!(problems(&TlsStatus::default()).is_empty());
    }
}
