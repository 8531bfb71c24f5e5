//! Requests for people: whether they change anything, what is under way while one waits, and what
//! to type where one is refused.

use std::borrow::Cow;

use base::shell_word;

use model::{Failure, FailureKind, Request, request};

use crate::units::exact_size;

/// The request changes nothing, and reads nothing from a device: the answer comes at once.
pub fn only_looks(request: &Request) -> bool {
    matches!(
        request,
        Request::Status(_)
            | Request::Clients(_)
            | Request::VolumeList(_)
            | Request::SnapshotList(_)
            | Request::GetScrub(_)
            | Request::GetMoves(_)
            | Request::Explain(_)
            | Request::GetConfig(_)
            | Request::Settings(_)
    )
}

/// Returns the work that is under way until the answer to a request comes.
pub fn doing(request: &Request) -> &'static str {
    match request {
        Request::VolumeCreate(_) => "making the volume",
        Request::VolumeResize(_) => "resizing the volume",
        Request::VolumeRename(_) => "renaming the volume",
        Request::VolumeDelete(_) => "deleting the volume",
        Request::SnapshotCreate(_) => "taking the snapshots",
        Request::SnapshotDelete(_) => "deleting the snapshot",
        Request::CacheAttach(_) => "attaching the cache",
        Request::CacheDetach(_) | Request::CacheFlush(_) => "writing back",
        Request::Gc(_) => "collecting garbage",
        Request::DeviceAdd(_) => "taking the device into use",
        Request::DeviceOnline(_) => "taking the device into use",
        Request::DeviceResize(_) => "resizing the device",
        _ => "waiting for the server",
    }
}

/// Returns the command to type, or other advice, where the server answers with this error.
pub fn next(request: &Request, e: &Failure) -> Cow<'static, str> {
    match request {
        Request::VolumeResize(request::VolumeResize {
            name, size_bytes, shrink: false, ..
        }) if e.kind == FailureKind::Refused => {
            let (name, size) = (shell_word(name), exact_size(*size_bytes));
            format!("forebay volume resize {name} --size {size} --shrink").into()
        }
        _ => same_next(request, e).into(),
    }
}

/// The same, where it does not depend on what was asked for.
fn same_next(request: &Request, e: &Failure) -> &'static str {
    if matches!(e.kind, FailureKind::Busy | FailureKind::Stopping) {
        return "type it again in a while; forebay status shows whether the server is there";
    }
    match request {
        Request::VolumeCreate(_) | Request::VolumeResize(_) if e.kind == FailureKind::NoSpace => {
            "forebay device add PATH gives a full pool room, and so does forebay volume delete \
             NAME; where the file system under a device is full, free space there"
        }
        Request::VolumeCreate(_) if e.kind == FailureKind::Invalid => {
            "see forebay volume create --help"
        }
        Request::VolumeResize(_) | Request::VolumeLimit(_) if e.kind == FailureKind::Invalid => {
            "forebay volume list shows what there is"
        }
        Request::VolumeResize(_) | Request::VolumeDelete(_) | Request::VolumeRename(_)
            if e.kind == FailureKind::Refused =>
        {
            "forebay clients shows who has it open; --force does it all the same"
        }
        Request::SnapshotCreate(_) | Request::SnapshotRename(_)
            if e.kind == FailureKind::Invalid =>
        {
            "see forebay snapshot create --help"
        }
        Request::SnapshotDelete(_) if e.kind == FailureKind::Refused => {
            "forebay clients shows who has it open; --force does it all the same"
        }
        Request::SnapshotList(_)
        | Request::SnapshotCreate(_)
        | Request::SnapshotRename(_)
        | Request::SnapshotDelete(_) => "forebay snapshot list shows all snapshots",
        Request::VolumeList(_)
        | Request::VolumeData(_)
        | Request::VolumeCreate(_)
        | Request::VolumeResize(_)
        | Request::VolumeLimit(_)
        | Request::VolumeReadOnly(_)
        | Request::VolumeRename(_)
        | Request::VolumeDelete(_)
        | Request::SetCacheMode(_)
        | Request::CacheCancel(request::CacheCancel { volume: Some(_) }) => {
            "forebay volume list --all shows all volumes"
        }
        Request::Explain(_) if e.kind == FailureKind::NotFound => {
            "forebay volume list --all shows all volumes"
        }
        Request::CacheAttach(_) => "see forebay cache attach --help",
        Request::CacheDetach(_)
        | Request::CacheFlush(_)
        | Request::CacheCancel(_)
        | Request::Gc(_) => match e.kind {
            FailureKind::NotFound => "forebay cache attach PATH --size SIZE gives it one",
            _ => "forebay cache status shows what it does",
        },
        Request::GetScrub(_)
        | Request::ScrubStart(_)
        | Request::ScrubPause(_)
        | Request::ScrubResume(_)
        | Request::ScrubCancel(_) => match e.kind {
            FailureKind::NotFound => "forebay device list shows all devices",
            _ => "forebay scrub status shows how it stands",
        },
        Request::DeviceAdd(request::DeviceAdd { replaces: Some(_), .. })
            if e.message.contains("No such file") =>
        {
            "to take a file, make it first: truncate -s SIZE FILE, then forebay device replace \
             OLD FILE"
        }
        Request::DeviceAdd(request::DeviceAdd { replaces: Some(_), .. }) => {
            "see forebay device replace --help, or forebay device list"
        }
        Request::DeviceAdd(_) if e.message.contains("No such file") => {
            "to add a file, make it first: truncate -s SIZE FILE; see forebay device add --help"
        }
        Request::DeviceAdd(_) => "see forebay device add --help, or forebay device list",
        Request::PoolCopies(_) => "forebay device add PATH adds a device",
        Request::DeviceResize(_)
        | Request::DevicesBalance(_)
        | Request::DeviceRemove(_)
        | Request::DeviceOffline(_)
        | Request::DeviceOnline(_)
        | Request::GetMoves(_)
        | Request::MovesCancel(_)
        | Request::MovesPause(_) => "forebay device list shows all devices and their states",
        Request::Set(request::Set { save: true, .. }) if e.kind == FailureKind::Failed => {
            "see to the file and type it again; or set it without --save, which holds until \
             the server ends"
        }
        Request::Settings(_) | Request::Set(_) => "forebay set lists all settings",
        Request::Explain(_) => "see forebay explain --help",
        Request::Status(_) | Request::Clients(_) | Request::GetConfig(_) => {
            "the server's log says more; forebay doctor looks for causes"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_a_command() {
        let name = || "a".to_owned();
        let requests: Vec<Request> = vec![
            request::Status {}.into(),
            request::Clients {}.into(),
            request::GetConfig {}.into(),
            request::VolumeCreate { name: name(), size_bytes: 1, sector_bytes: 512 }.into(),
            request::VolumeResize { name: name(), size_bytes: 1, shrink: false, force: false }
                .into(),
            request::VolumeDelete { name: name(), force: false }.into(),
            request::VolumeRename { name: name(), to: name(), force: false }.into(),
            request::SnapshotList { volume: None }.into(),
            request::SnapshotCreate { snapshots: vec![name()] }.into(),
            request::SnapshotRename { snapshot: name(), to: name() }.into(),
            request::SnapshotDelete { snapshot: name(), force: false }.into(),
            request::CacheFlush {}.into(),
            request::Gc {}.into(),
            request::ScrubStart { device: None, rate: None }.into(),
            request::GetMoves {}.into(),
            request::Settings { key: None }.into(),
            request::Explain { volume: None, class: None, since_seconds: 1, slower_than_us: 1 }
                .into(),
        ];
        for request in requests {
            for kind in FailureKind::ALL {
                let said = next(&request, &Failure::new(kind, "no"));
                assert!(said.contains("forebay "), "{request:?} {kind}: {said}");
            }
            assert!(!doing(&request).is_empty());
        }
    }

    #[test]
    fn a_volume_that_would_shrink_is_named() {
        let name = "b c".to_owned();
        let request =
            request::VolumeResize { name, size_bytes: 1 << 30, shrink: false, force: false };
        let said = next(&request.clone().into(), &Failure::new(FailureKind::Refused, "no"));
        assert_eq!(said, "forebay volume resize 'b c' --size 1G --shrink");
    }

    #[test]
    fn a_device_that_is_not_there_can_be_made() {
        let (device, replaces) = ("nofile.img".to_owned(), None);
        let request = request::DeviceAdd { device, replaces, force: false, spare: false };
        let why = std::io::Error::from_raw_os_error(2);
        let said = next(
            &request.clone().into(),
            &Failure::new(FailureKind::Refused, format!("nofile.img: {why}")),
        );
        assert!(said.contains("truncate -s SIZE FILE") && said.contains("device add"), "{said}");
        let (device, replaces) = ("nofile.img".to_owned(), Some("a".to_owned()));
        let request = request::DeviceAdd { device, replaces, force: false, spare: false };
        for (kind, text) in [
            (FailureKind::Refused, format!("nofile.img: {why}")),
            (FailureKind::NotFound, "a".into()),
        ] {
            let said = next(&request.clone().into(), &Failure::new(kind, text));
            assert!(said.contains("device replace") && !said.contains("device add"), "{said}");
        }
    }
}
