//! Values of settings: what kinds there are, how each is read and written, and its range.

use std::fmt;
use std::time::Duration;

use toml::Value as Toml;

use crate::units::{exact_duration, exact_size, parse_duration, parse_size};

/// The kind of a setting's values; the ends of a range belong to it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Bytes: a number, or a text with a unit.
    Size(u64, u64),
    /// A text with a unit.
    Time(Duration, Duration),
    Number(u64, u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A time of day, or any.
    TimeOfDay,
}

/// A value of a setting.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub enum Value {
    /// Bytes.
    Size(u64),
    Time(Duration),
    Number(u64),
    Word(&'static str),
    /// Minutes since midnight; `None`: any time.
    TimeOfDay(Option<u16>),
}

impl fmt::Display for Value {
    /// As [`Kind::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Size(n) => f.write_str(&exact_size(*n)),
            Value::Time(time) => f.write_str(&exact_duration(*time)),
            Value::Number(n) => n.fmt(f),
            Value::Word(word) => f.write_str(word),
            Value::TimeOfDay(None) => f.write_str(ANY),
            Value::TimeOfDay(Some(minutes)) => {
                write!(f, "{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }
}

/// Any time of day.
const ANY: &str = "any";

fn parse_time_of_day(text: &str) -> Result<Option<u16>, String> {
    if text == ANY {
        return Ok(None);
    }
    let number = |part: &str, below: u16| {
        let digits = part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
        part.parse().ok().filter(|n: &u16| digits && *n < below)
    };
    let (hours, minutes) = text.split_once(':').unwrap_or_default();
    match (number(hours, 24), number(minutes, 60)) {
        (Some(hours), Some(minutes)) => Ok(Some(hours * 60 + minutes)),
        _ => Err(format!("{text:?} is no time of day, like \"02:30\", and not \"{ANY}\"")),
    }
}

impl Value {
    /// The number of a size or a number.
    pub fn number(self) -> u64 {
        match self {
            Value::Size(n) | Value::Number(n) => n,
            _ => unreachable!("the table says that it is a number"),
        }
    }

    /// The time.
    pub fn time(self) -> Duration {
        match self {
            Value::Time(time) => time,
            _ => unreachable!("the table says that it is a time"),
        }
    }

    /// Minutes since midnight, or any time.
    pub fn time_of_day(self) -> Option<u16> {
        match self {
            Value::TimeOfDay(time) => time,
            _ => unreachable!("the table says that it is a time of day"),
        }
    }

    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Value::Word(word) => word,
            _ => unreachable!("the table says that it is a word"),
        }
    }
}

impl Kind {
    /// Reads a text.
    pub fn parse(self, text: &str) -> Result<Value, String> {
        match self {
            Kind::Size(..) => parse_size(text).map(Value::Size),
            Kind::Time(..) => parse_duration(text).map(Value::Time),
            Kind::Number(..) => {
                let number = text.trim().parse();
                number.map(Value::Number).map_err(|_| format!("{text:?} is not a whole number"))
            }
            Kind::Word(words) => {
                let known = words.iter().find(|word| **word == text);
                known.map(|word| Value::Word(word)).ok_or_else(|| {
                    format!("{text:?} is none of its values; it can be {}", self.range())
                })
            }
            Kind::TimeOfDay => parse_time_of_day(text).map(Value::TimeOfDay),
        }
    }

    /// Reads a value of the configuration file.
    pub fn read(self, value: &Toml) -> Result<Value, String> {
        match (self, value) {
            (Kind::Number(..), Toml::String(_)) => Err(format!("{value} is not a whole number")),
            (_, Toml::String(text)) => self.parse(text),
            (Kind::Size(..) | Kind::Number(..), Toml::Integer(n)) => {
                let number = u64::try_from(*n).map_err(|_| format!("{n} is below 0"))?;
                Ok(if let Kind::Size(..) = self {
                    Value::Size(number)
                } else {
                    Value::Number(number)
                })
            }
            (Kind::Size(..), _) => Err(format!("{value} is not a size, like \"512M\" or 4096")),
            (Kind::Time(..), _) => Err(format!("{value} is not a time, like \"5s\"")),
            (Kind::Number(..), _) => Err(format!("{value} is not a whole number")),
            (Kind::Word(_) | Kind::TimeOfDay, _) => {
                Err(format!("{value} is no text; it can be {}", self.range()))
            }
        }
    }

    /// The least value and the most, of what has such.
    pub fn ends(self) -> Option<(Value, Value)> {
        match self {
            Kind::Size(least, most) => Some((Value::Size(least), Value::Size(most))),
            Kind::Time(least, most) => Some((Value::Time(least), Value::Time(most))),
            Kind::Number(least, most) => Some((Value::Number(least), Value::Number(most))),
            Kind::Word(_) | Kind::TimeOfDay => None,
        }
    }

    /// Returns the range of values, for people.
    pub fn range(self) -> String {
        match (self, self.ends()) {
            (_, Some((least, most))) => format!("{least} to {most}"),
            (Kind::Word([words @ .., last]), None) => format!("{} or {last}", words.join(", ")),
            (Kind::TimeOfDay, _) => format!("{ANY}, or 00:00 to 23:59"),
            (_, None) => unreachable!("there are words"),
        }
    }

    /// True if `value` is in the range.
    pub fn has(self, value: Value) -> bool {
        self.ends().is_none_or(|(least, most)| least <= value && value <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let hour = Duration::from_secs(3600);
        for (kind, value, text) in [
            (Kind::Size(0, 9), Value::Size(64 << 10), "64K"),
            (Kind::Size(0, 9), Value::Size(5000), "5000"),
            (Kind::Time(hour, hour), Value::Time(hour), "1h"),
            (Kind::Number(0, 9), Value::Number(1 << 24), "16777216"),
            (Kind::Word(&["a", "b"]), Value::Word("b"), "b"),
            (Kind::TimeOfDay, Value::TimeOfDay(Some(125)), "02:05"),
            (Kind::TimeOfDay, Value::TimeOfDay(None), "any"),
        ] {
            assert_eq!((value.to_string().as_str(), kind.parse(text)), (text, Ok(value)));
        }
    }

    #[test]
    fn nonsense_is_named() {
        for (kind, text, word) in [
            (Kind::Size(0, 9), "many", "many"),
            (Kind::Time(Duration::ZERO, Duration::ZERO), "7", "500ms"),
            (Kind::Number(0, 9), "-1", "whole number"),
            (Kind::Word(&["a", "b", "c"]), "d", "a, b or c"),
            (Kind::TimeOfDay, "24:00", "02:30"),
            (Kind::TimeOfDay, "+1:00", "02:30"),
            (Kind::TimeOfDay, "7", "any"),
        ] {
            let e = kind.parse(text).unwrap_err();
            assert!(e.contains(word), "{e}");
        }
        for value in [Toml::Integer(-1), Toml::Boolean(true), Toml::Float(0.5)] {
            let time = Kind::Time(Duration::ZERO, Duration::ZERO);
            for kind in [Kind::Size(0, 9), time, Kind::Number(0, 9), Kind::Word(&["a", "b"])] {
                kind.read(&value).unwrap_err();
            }
        }
        assert!(Kind::Number(0, 9).read(&Toml::String("1".into())).is_err());
    }

    #[test]
    fn ends_belong_to_a_range() {
        let kind = Kind::Number(3, 5);
        let inside: Vec<u64> = (0..9).filter(|n| kind.has(Value::Number(*n))).collect();
        assert_eq!((inside, kind.range().as_str()), (vec![3, 4, 5], "3 to 5"));
    }
}
