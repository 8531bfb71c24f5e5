//! Totals of the last hour.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};

/// Samples of the last hour.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// Seconds between two samples.
    pub every_seconds: u64,
    /// The value to send as from, for later samples.
    pub next: u64,
    /// The age of each sample in seconds, the oldest first.
    pub seconds_ago: Vec<Figure>,
    /// A number of each sample, null where there is none; requests, bytes and carried_bytes are per
    /// second, of the time since the sample before.
    pub series: BTreeMap<String, Vec<Option<Figure>>>,
}

/// A number that is written without a point if it is whole, which keeps answers with many of them
/// short.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default, Deserialize)]
pub struct Figure(pub f64);

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = self.0 as i64;
        if whole as f64 == self.0 {
            serializer.serialize_i64(whole)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl JsonSchema for Figure {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Figure".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        f64::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_no_point() {
        for (number, text) in [(0.0, "0"), (1235000.0, "1235000"), (-2.0, "-2"), (0.5, "0.5")] {
            assert_eq!(serde_json::to_string(&Figure(number)).unwrap(), text);
            assert_eq!(serde_json::from_str::<Figure>(text).unwrap(), Figure(number));
        }
    }
}
