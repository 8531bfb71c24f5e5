//! The readers of foreign bytes, for the fuzz targets: none of them may panic, and their errors
//! must have words for people.

use std::fs::File;
use std::path::Path;

use crate::config::{ConfigFile, Sections, ServeConfig};
use crate::control::{decode_answer, decode_request, encode_answer, encode_request};
use crate::host::emptiness::{self, Content};
use crate::units;

/// A configuration file, as far as a server reads it before it opens anything.
pub fn config(text: &str) {
    match ConfigFile::parse(text) {
        Ok(file) => drop(ServeConfig::new(Sections::default(), file, Path::new("home"))),
        Err(e) => assert!(!e.is_empty(), "an error without a word"),
    }
}

/// A size and a time, as a person types them. A size that is shown is read as the same. Times are
/// read with the precision of a `f64`.
pub fn units(text: &str) {
    if let Ok(size) = units::parse_size(text) {
        assert_eq!(units::parse_size(&units::exact_size(size)), Ok(size));
    }
    if let Ok(time) = units::parse_duration(text) {
        let again = units::parse_duration(&units::exact_duration(time));
        let far = again.map(|again| again.abs_diff(time).as_secs_f64());
        assert!(far.is_ok_and(|s| s <= 0.000_002 + time.as_secs_f64() / 1e12), "{time:?}");
    }
}

/// A line of the control protocol, of either side.
pub fn control(line: &[u8]) {
    match decode_request(line) {
        Ok(request) => {
            let again = encode_request(&request).unwrap_or_default();
            assert_eq!(decode_request(&again), Ok(request));
        }
        Err(e) => {
            let line = encode_answer::<()>(Err(&e)).unwrap_or_default();
            assert_eq!(decode_answer(&line), Some(Err(e)));
        }
    }
    if let Some(answer) = decode_answer(line) {
        let again = encode_answer(answer.as_ref()).unwrap_or_default();
        assert_eq!(decode_answer(&again), Some(answer));
    }
}

/// A device of `size_bytes` with somebody's data on it. Once it was cleared it is empty.
pub fn emptiness(device: &File, size_bytes: u64) {
    if let Content::Data(what) = emptiness::by_bytes(device, size_bytes) {
        assert!(!what.is_empty(), "data without a name");
    }
    assert!(emptiness::clear(device, size_bytes).is_ok(), "a file that can be written");
    assert_eq!(emptiness::by_bytes(device, size_bytes), Content::Empty);
}
