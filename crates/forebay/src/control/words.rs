//! Requests for people: whether they change anything, what is under way while one waits, and what
//! to type where one is refused.

use std::borrow::Cow;

use base::shell_word;

use super::{Request, RequestError};
use crate::units::exact_size;

impl Request {
    /// It changes nothing, and reads nothing from a device: the answer comes at once.
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Request::Status {}
                | Request::Clients {}
                | Request::VolumeList {}
                | Request::ScrubStatus {}
                | Request::MovesStatus {}
                | Request::Explain { .. }
                | Request::Config {}
                | Request::Settings { .. }
        )
    }

    /// What is under way until the answer comes.
    pub fn doing(&self) -> &'static str {
        match self {
            Request::VolumeCreate { .. } => "making the volume",
            Request::VolumeResize { .. } => "resizing the volume",
            Request::VolumeDelete { .. } => "deleting the volume",
            Request::CacheAttach { .. } => "attaching the cache",
            Request::CacheDetach {} | Request::CacheFlush {} => "writing back",
            Request::Gc {} => "collecting garbage",
            Request::DeviceAdd { .. } => "taking the device into use",
            Request::DeviceOnline { .. } => "taking the device into use",
            Request::DeviceResize { .. } => "resizing the device",
            _ => "waiting for the server",
        }
    }

    /// What to type where the server answers with this error.
    pub fn next(&self, e: &RequestError) -> Cow<'static, str> {
        match self {
            Request::VolumeResize { name, size_bytes, shrink: false, .. }
                if e.kind == "refused" =>
            {
                let (name, size) = (shell_word(name), exact_size(*size_bytes));
                format!("forebay volume resize {name} --size {size} --shrink").into()
            }
            _ => self.same_next(e).into(),
        }
    }

    /// The same, where it does not depend on what was asked for.
    fn same_next(&self, e: &RequestError) -> &'static str {
        let kind = e.kind.as_str();
        if matches!(kind, "busy" | "stopping") {
            return "type it again in a while; forebay status shows whether the server is there";
        }
        match self {
            Request::VolumeCreate { .. } | Request::VolumeResize { .. } if kind == "no-space" => {
                "forebay device add PATH gives a full pool room, and so does forebay volume delete \
                 NAME; where the file system under a device is full, free space there"
            }
            Request::VolumeCreate { .. } if kind == "invalid" => "see forebay volume create --help",
            Request::VolumeResize { .. } | Request::VolumeLimit { .. } if kind == "invalid" => {
                "forebay volume list shows what there is"
            }
            Request::VolumeResize { .. } | Request::VolumeDelete { .. } if kind == "refused" => {
                "forebay clients shows who has it open"
            }
            Request::VolumeList {}
            | Request::VolumeData { .. }
            | Request::VolumeCreate { .. }
            | Request::VolumeResize { .. }
            | Request::VolumeLimit { .. }
            | Request::VolumeReadOnly { .. }
            | Request::VolumeDelete { .. }
            | Request::CacheMode { .. }
            | Request::CacheCancel { volume: Some(_) } => {
                "forebay volume list --all shows all volumes"
            }
            Request::Explain { .. } if kind == "not-found" => {
                "forebay volume list --all shows all volumes"
            }
            Request::CacheAttach { .. } => "see forebay cache attach --help",
            Request::CacheDetach {}
            | Request::CacheFlush {}
            | Request::CacheCancel { .. }
            | Request::Gc {} => match kind {
                "not-found" => "forebay cache attach PATH --size SIZE gives it one",
                _ => "forebay cache status shows what it does",
            },
            Request::ScrubStatus {}
            | Request::ScrubStart { .. }
            | Request::ScrubPause {}
            | Request::ScrubResume { .. }
            | Request::ScrubCancel {} => match kind {
                "not-found" => "forebay device list shows all devices",
                _ => "forebay scrub status shows how it stands",
            },
            Request::DeviceAdd { replaces: Some(_), .. } if e.message.contains("No such file") => {
                "to take a file, make it first: truncate -s SIZE FILE, then forebay device replace \
                 OLD FILE"
            }
            Request::DeviceAdd { replaces: Some(_), .. } => {
                "see forebay device replace --help, or forebay device list"
            }
            Request::DeviceAdd { .. } if e.message.contains("No such file") => {
                "to add a file, make it first: truncate -s SIZE FILE; see forebay device add --help"
            }
            Request::DeviceAdd { .. } => "see forebay device add --help, or forebay device list",
            Request::PoolCopies { .. } => "forebay device add PATH adds a device",
            Request::DeviceResize { .. }
            | Request::DevicesBalance {}
            | Request::DeviceRemove { .. }
            | Request::DeviceOffline { .. }
            | Request::DeviceOnline { .. }
            | Request::MovesStatus {}
            | Request::MovesCancel {}
            | Request::MovesPause { .. } => {
                "forebay device list shows all devices and their states"
            }
            Request::Set { save: true, .. } if kind == "failed" => {
                "see to the file and type it again; or set it without --save, which holds until \
                 the server ends"
            }
            Request::Settings { .. } | Request::Set { .. } => "forebay set lists all settings",
            Request::Explain { .. } => "see forebay explain --help",
            Request::Status {} | Request::Clients {} | Request::Config {} => {
                "the server's log says more; forebay doctor looks for causes"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_a_command() {
        let name = || "a".to_owned();
        for request in [
            Request::Status {},
            Request::Clients {},
            Request::Config {},
            Request::VolumeCreate { name: name(), size_bytes: 1, sector_bytes: 512 },
            Request::VolumeResize { name: name(), size_bytes: 1, shrink: false, force: false },
            Request::VolumeDelete { name: name(), force: false },
            Request::CacheFlush {},
            Request::Gc {},
            Request::ScrubStart { device: None, rate: None },
            Request::MovesStatus {},
            Request::Settings { key: None },
            Request::Explain { volume: None, class: None, since_seconds: 1, slower_than_us: 1 },
        ] {
            for kind in
                ["invalid", "not-found", "exists", "refused", "no-space", "failed", "busy", "new"]
            {
                let next = request.next(&RequestError::new(kind, "no"));
                assert!(next.contains("forebay "), "{request:?} {kind}: {next}");
            }
            assert!(!request.doing().is_empty());
        }
    }

    #[test]
    fn a_volume_that_would_shrink_is_named() {
        let name = "b c".to_owned();
        let request =
            Request::VolumeResize { name, size_bytes: 1 << 30, shrink: false, force: false };
        let next = request.next(&RequestError::new("refused", "no"));
        assert_eq!(next, "forebay volume resize 'b c' --size 1G --shrink");
    }

    #[test]
    fn a_device_that_is_not_there_can_be_made() {
        let (device, replaces) = ("nofile.img".to_owned(), None);
        let request = Request::DeviceAdd { device, replaces, force: false, spare: false };
        let why = std::io::Error::from_raw_os_error(2);
        let next = request.next(&RequestError::new("refused", format!("nofile.img: {why}")));
        assert!(next.contains("truncate -s SIZE FILE") && next.contains("device add"), "{next}");
        let (device, replaces) = ("nofile.img".to_owned(), Some("a".to_owned()));
        let request = Request::DeviceAdd { device, replaces, force: false, spare: false };
        for (kind, text) in [("refused", format!("nofile.img: {why}")), ("not-found", "a".into())] {
            let next = request.next(&RequestError::new(kind, text));
            assert!(next.contains("device replace") && !next.contains("device add"), "{next}");
        }
    }
}
