//! The permits of a unix socket: its mode and its group say who may connect.

use std::fmt;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

use crate::host::sockets::PRIVATE;

/// The mode of a socket for its owner and the group that is named.
const SHARED: u32 = 0o660;

/// The mode of a socket: permission bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(pub u32);

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let octal = !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
        match u32::from_str_radix(text, 8) {
            Ok(bits) if octal && bits & !0o777 == 0 && bits & 0o600 == 0o600 => Ok(Mode(bits)),
            _ => Err(format!(
                "{text:?} is not the mode of a socket: three octal digits such as 0660; the \
                 owner's is 6 or 7"
            )),
        }
    }
}

impl Mode {
    /// Returns the error for a mode that is a number in a configuration: TOML has no octal digits
    /// without `0o`, so the number may mean one thing or another.
    pub(super) fn not_of_number(number: i64) -> String {
        let digits = number.to_string().parse::<Mode>();
        let bits = || u32::try_from(number).ok().and_then(|n| format!("{n:o}").parse().ok());
        let meant = digits.ok().or_else(bits).unwrap_or(Mode(PRIVATE));
        format!("{number} is a number; write the mode as a text, \"{:04o}\"", meant.0)
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Mode, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Mode;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mode as a text, such as \"0660\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Mode, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Mode, E> {
                Err(E::custom(Mode::not_of_number(number)))
            }
        }
        d.deserialize_any(Text)
    }
}

/// The mode of a socket of which none is said: a group that is named may connect.
pub(super) fn mode_for(group: &Option<String>) -> Mode {
    Mode(if group.is_some() { SHARED } else { PRIVATE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_leave_the_owner_in() {
        let mode = |text: &str| text.parse::<Mode>().map(|mode| mode.0);
        assert_eq!((mode("0660"), mode("600"), mode("0777")), (Ok(0o660), Ok(0o600), Ok(0o777)));
        for wrong in ["", "660x", "0x1b0", "+660", "1660", "060", "0400", "888", "00660"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_is_shown_as_the_text_that_was_meant() {
        for (number, text) in [(600, "0600"), (660, "0660"), (0o660, "0660"), (9, "0600")] {
            let told = Mode::not_of_number(number);
            assert!(told.ends_with(&format!("as a text, \"{text}\"")), "{told}");
        }
    }
}
