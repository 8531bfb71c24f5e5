//! The fields of requests: what each can be, and what it says. Both are read from the types in
//! `model::request`.

use model::request;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::table::Kind;

/// A field of a request.
pub struct OwnField {
    /// The name of the field.
    pub name: String,
    /// The kind of the field's values.
    pub kind: Kind,
    /// The meaning of the field.
    pub what: String,
}

/// The fields of the requests of a verb.
pub fn fields_of(verb: &str) -> Vec<OwnField> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let schema = request::schema(verb, &mut SchemaGenerator::new(settings));
    let schema = schema.map(|schema| schema.to_value()).unwrap_or_default();
    let fields = schema["properties"].as_object().into_iter().flatten();
    let own = |(name, field): (&String, &Value)| OwnField {
        name: name.clone(),
        kind: kind_of(field),
        what: described(field),
    };
    fields.map(own).collect()
}

/// The description of a field, as it stands in a line: it begins with a small letter, and does not
/// end with a full stop.
fn described(field: &Value) -> String {
    let text = field["description"].as_str().unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.strip_suffix('.').unwrap_or(&text);
    let mut letters = text.chars();
    let first = letters.next().map(char::to_lowercase);
    first.into_iter().flatten().chain(letters).collect()
}

fn kind_of(field: &Value) -> Kind {
    let is_null = |one: &Value| one["type"] == "null";
    if let Some(inner) = field["anyOf"].as_array().and_then(|all| all.iter().find(|o| !is_null(o)))
    {
        return kind_of(inner);
    }
    if let Some(words) = field["oneOf"].as_array() {
        let words = words.iter().filter_map(|one| one["const"].as_str().map(str::to_owned));
        // The table of routes lives as long as the process.
        let words = words.map(|word| -> &'static str { word.leak() });
        return Kind::Word(words.collect::<Vec<_>>().leak());
    }
    let is = |kind: &str| match &field["type"] {
        Value::Array(kinds) => kinds.iter().any(|one| one == kind),
        one => one == kind,
    };
    let end = |name: &str| field[name].as_u64();
    if is("boolean") {
        Kind::Flag
    } else if is("integer") {
        let most = end("maximum").or(most_of(&field["format"])).unwrap_or(u64::MAX);
        Kind::Whole(end("minimum").unwrap_or(0), most)
    } else if is("array") {
        Kind::Texts
    } else if end("minLength").is_some() {
        Kind::Name
    } else {
        Kind::Text
    }
}

/// The largest number of a type of Rust.
fn most_of(format: &Value) -> Option<u64> {
    match format.as_str()? {
        "uint8" => Some(u8::MAX.into()),
        "uint16" => Some(u16::MAX.into()),
        "uint32" => Some(u32::MAX.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_types() {
        let kind = |verb: &str, name: &str| {
            let found = fields_of(verb).into_iter().find(|field| field.name == name);
            found.map(|field| field.kind)
        };
        assert_eq!(kind("volume-create", "name"), Some(Kind::Name));
        assert_eq!(kind("volume-create", "size_bytes"), Some(Kind::Whole(0, u64::MAX)));
        assert_eq!(kind("volume-limit", "iops"), Some(Kind::Whole(0, u32::MAX.into())));
        assert_eq!(kind("pool-copies", "copies"), Some(Kind::Whole(1, 3)));
        assert_eq!(kind("cache-attach", "path"), Some(Kind::Text));
        assert_eq!(kind("device-add", "force"), Some(Kind::Flag));
        assert_eq!(kind("snapshot-create", "snapshots"), Some(Kind::Texts));
        assert_eq!(kind("snapshot-list", "volume"), Some(Kind::Text));
        let modes = &["writeback", "writethrough", "writearound", "none"];
        assert_eq!(kind("cache-mode", "mode"), Some(Kind::Word(modes)));
        let classes = &["read", "write", "flush", "discard", "other"];
        assert_eq!(kind("explain", "class"), Some(Kind::Word(classes)));
        let what = fields_of("volume-data").remove(0).what;
        assert_eq!(what, "the name of the volume");
        assert!(fields_of("no-such-verb").is_empty());
    }
}
