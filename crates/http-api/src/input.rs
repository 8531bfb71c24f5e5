//! The input of a client, checked by the table and made into a request to the engine.
//!
//! Fault model: anything may come. Each error says which field is wrong, and what it could be.

use model::{Failure, FailureKind, Request};
use serde_json::{Map, Value, json};

use crate::table::{Act, Field, Kind, Need, Place, Route, ShownPart};

/// The fields that a route was given.
#[derive(Debug)]
pub struct Input {
    /// The request to the engine, without its verb.
    pub fields: Map<String, Value>,
    /// The fields for this crate.
    pub here: Map<String, Value>,
}

impl Input {
    /// The request to the engine.
    pub fn request(&self, verb: &str) -> Result<Request, Failure> {
        let mut fields = self.fields.clone();
        fields.insert("request".into(), verb.into());
        serde_json::from_value(Value::Object(fields)).map_err(|e| Failure::invalid(e.to_string()))
    }

    /// A flag for this crate.
    pub fn flag(&self, name: &str) -> bool {
        self.here.get(name) == Some(&Value::Bool(true))
    }

    /// The number of a job, in the path.
    pub fn id(&self) -> u64 {
        self.fields.get("id").and_then(Value::as_u64).unwrap_or(0)
    }

    /// A text for this crate.
    pub fn text(&self, name: &str) -> &str {
        self.here.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A number for this crate.
    pub fn number(&self, name: &str) -> u64 {
        self.here.get(name).and_then(Value::as_u64).unwrap_or(0)
    }
}

/// Reads what a client gave: the values of the path in its order, the query, the body.
pub fn read(
    route: &Route,
    path: &[String],
    query: Option<&str>,
    body: &[u8],
) -> Result<Input, Failure> {
    let mut input = Input { fields: Map::new(), here: Map::new() };
    for (field, text) in route.at(Place::Path).zip(path) {
        input.fields.insert(field.name.into(), of_text(field, text)?);
    }
    let (mut asked, mut sent) = (pairs(query)?, object(body)?);
    for field in &route.fields {
        let given = match field.place {
            Place::Path => continue,
            Place::Fixed => None,
            Place::Query | Place::Here => {
                asked.remove(field.name).map(|text| of_text(field, &text)).transpose()?
            }
            Place::Body => match sent.remove(field.name) {
                None => None,
                // A null says the same as an absent field, where the field may be absent.
                Some(Value::Null) if field.need != Need::Must => None,
                Some(value) => Some(of_json(field, value)?),
            },
        };
        let Some(value) = given.map_or_else(|| absent(field), |value| Ok(Some(value)))? else {
            continue;
        };
        let into = if field.place == Place::Here { &mut input.here } else { &mut input.fields };
        into.insert(field.name.into(), value);
    }
    if let Some(name) = asked.keys().next() {
        return Err(unknown("the query", name, route, &[Place::Query, Place::Here]));
    }
    if let Some(name) = sent.keys().next() {
        return Err(unknown("the body", name, route, &[Place::Body]));
    }
    // A field that picks from the answer is none of the request.
    if let Act::Ask(_, ShownPart::Named) | Act::Advice = route.act {
        input.here = std::mem::take(&mut input.fields);
    }
    Ok(input)
}

fn unknown(place: &str, name: &str, route: &Route, places: &[Place]) -> Failure {
    let known: Vec<&str> =
        route.fields.iter().filter(|f| places.contains(&f.place)).map(|f| f.name).collect();
    let known = match known.is_empty() {
        true => "it takes nothing".to_owned(),
        false => format!("it takes {}", known.join(", ")),
    };
    Failure::invalid(format!("{place} has {name:?}, which is not known; {known}"))
}

fn absent(field: &Field) -> Result<Option<Value>, Failure> {
    match field.need {
        Need::Must => Err(Failure::invalid(format!("{} is missing: {}", field.name, field.what))),
        Need::May => Ok(None),
        Need::Else(text) => serde_json::from_str(text)
            .map(Some)
            .map_err(|e| Failure::new(FailureKind::Failed, format!("{}: {e}", field.name))),
    }
}

/// The pairs behind the question mark.
fn pairs(query: Option<&str>) -> Result<std::collections::BTreeMap<String, String>, Failure> {
    let mut found = std::collections::BTreeMap::new();
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if found.insert(name.clone().into_owned(), value.into_owned()).is_some() {
            return Err(Failure::invalid(format!("the query has {name:?} twice")));
        }
    }
    Ok(found)
}

/// The object of a body; an absent one is empty.
fn object(body: &[u8]) -> Result<Map<String, Value>, Failure> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Failure::invalid("the body is no JSON object")),
        Err(e) => Err(Failure::invalid(format!("the body is not JSON: {e}"))),
    }
}

fn wrong(field: &Field, given: &str) -> Failure {
    // The input of a client comes back, though not a lot of it.
    let given: String = given.chars().take(80).collect();
    let can = match field.kind {
        Kind::Text => "a text".to_owned(),
        Kind::Name => "a text of 1 to 64 bytes".to_owned(),
        Kind::Texts => "a list of texts".to_owned(),
        Kind::Scalar => "a text or a number".to_owned(),
        Kind::Word(words) => format!("one of {}", words.join(", ")),
        Kind::Whole(least, u64::MAX) => format!("a whole number from {least} on"),
        Kind::Whole(least, most) => format!("a whole number from {least} to {most}"),
        Kind::Flag => "true or false".to_owned(),
    };
    Failure::invalid(format!("{} is {given}; it can be {can}", field.name))
}

/// A value of path or query.
fn of_text(field: &Field, text: &str) -> Result<Value, Failure> {
    let value = match field.kind {
        Kind::Text | Kind::Name | Kind::Scalar | Kind::Word(_) => json!(text),
        Kind::Texts => json!([text]),
        Kind::Whole(..) => text.parse::<u64>().map_or(Value::Null, |n| json!(n)),
        Kind::Flag => text.parse::<bool>().map_or(Value::Null, |flag| json!(flag)),
    };
    match value {
        Value::Null => Err(wrong(field, &format!("{text:?}"))),
        value => of_json(field, value),
    }
}

/// A whole number that is written as `7.0`, which JSON Schema calls an integer too. One that is
/// larger than what a float has exactly is none.
fn whole(n: &serde_json::Number) -> Option<u64> {
    const EXACT: f64 = (1u64 << 53) as f64;
    let n = n.as_f64()?;
    (n.fract() == 0.0 && (0.0..=EXACT).contains(&n)).then_some(n as u64)
}

/// A value of the body.
fn of_json(field: &Field, value: Value) -> Result<Value, Failure> {
    let fits = match (field.kind, &value) {
        (Kind::Text | Kind::Scalar, Value::String(_)) | (Kind::Flag, Value::Bool(_)) => true,
        (Kind::Name, Value::String(name)) => (1..=64).contains(&name.len()),
        (Kind::Texts, Value::Array(all)) => all.iter().all(Value::is_string),
        (Kind::Word(words), Value::String(word)) => words.contains(&word.as_str()),
        (Kind::Whole(least, most), Value::Number(n)) => match n.as_u64().or_else(|| whole(n)) {
            Some(n) if (least..=most).contains(&n) => return Ok(json!(n)),
            _ => false,
        },
        (Kind::Scalar, Value::Number(n)) => return Ok(json!(n.to_string())),
        _ => false,
    };
    if fits { Ok(value) } else { Err(wrong(field, &value.to_string())) }
}

#[cfg(test)]
mod tests {
    use model::request;
    use model::volume::CacheMode;

    use super::*;
    use crate::routes::ROUTES;

    fn route(method: &str, path: &str) -> &'static Route {
        ROUTES.iter().find(|r| r.method == method && r.path == path).unwrap()
    }

    #[test]
    fn fields_come_from_everywhere() {
        let path = ["vm1".to_owned()];
        let body = br#"{"mode":"writethrough"}"#;
        let input = read(route("PUT", "/v1/volumes/{name}/mode"), &path, None, body).unwrap();
        let mode = request::SetCacheMode { volume: "vm1".into(), mode: CacheMode::WriteThrough };
        assert_eq!(input.request("cache-mode"), Ok(mode.into()));
        let input = read(route("POST", "/v1/cache/flush"), &[], Some("wait=true"), b"").unwrap();
        assert!(input.flag("wait") && input.fields.is_empty());
        let query = Some("volume=a%20b&since_seconds=7");
        let input = read(route("GET", "/v1/explain"), &[], query, b" {} ").unwrap();
        assert_eq!(
            Value::Object(input.fields),
            json!({ "volume": "a b", "since_seconds": 7, "slower_than_us": 20000 })
        );
        let body = br#"{"value":40,"save":null}"#;
        let input = read(route("PUT", "/v1/settings/{key}"), &path, None, body).unwrap();
        let set = request::Set { key: "vm1".into(), value: "40".into(), save: false };
        assert_eq!(input.request("set"), Ok(set.into()));
        let body = br#"{"size_bytes":7.0}"#;
        let input = read(route("PATCH", "/v1/volumes/{name}"), &path, None, body).unwrap();
        let resize = request::VolumeResize {
            name: "vm1".into(),
            size_bytes: 7,
            shrink: false,
            force: false,
        };
        assert_eq!(input.request("volume-resize"), Ok(resize.into()));
        let body = br#"{"snapshots":["vm1@a","vm2@a"]}"#;
        let input = read(route("POST", "/v1/snapshots"), &[], None, body).unwrap();
        let snapshots = vec!["vm1@a".to_owned(), "vm2@a".to_owned()];
        assert_eq!(
            input.request("snapshot-create"),
            Ok(request::SnapshotCreate { snapshots }.into())
        );
        let input = read(route("GET", "/v1/snapshots"), &[], None, b"").unwrap();
        let list = request::SnapshotList { volume: None };
        assert_eq!(input.request("snapshot-list"), Ok(list.into()));
        let input = read(route("POST", "/v1/moves/pause"), &[], None, b"").unwrap();
        let pause = request::MovesPause { paused: true };
        assert_eq!(input.request("moves-pause"), Ok(pause.into()));
    }

    #[test]
    fn errors_say_what_and_where() {
        let create = route("POST", "/v1/volumes");
        for (body, word) in [
            ("{", "line 1"),
            ("[]", "object"),
            ("{}", "name is missing"),
            (r#"{"name":"a"}"#, "size_bytes is missing"),
            (r#"{"name":7,"size_bytes":1}"#, "name is 7; it can be a text"),
            (r#"{"name":"a","size_bytes":-1}"#, "size_bytes is -1"),
            (r#"{"name":"a","size_bytes":1.5}"#, "whole number"),
            (r#"{"name":"a","size_bytes":1e20}"#, "whole number"),
            (r#"{"name":"a","size_bytes":null}"#, "size_bytes is null"),
            (r#"{"name":"","size_bytes":1}"#, "1 to 64 bytes"),
            (r#"{"name":"a","size_bytes":1,"colour":"red"}"#, "colour"),
        ] {
            let e = read(create, &[], None, body.as_bytes()).unwrap_err();
            assert!(
                e.kind == FailureKind::Invalid && e.message.contains(word),
                "{body}: {}",
                e.message
            );
        }
        let create = route("POST", "/v1/snapshots");
        for body in [r#"{"snapshots":"a@b"}"#, r#"{"snapshots":["a@b",1]}"#] {
            let e = read(create, &[], None, body.as_bytes()).unwrap_err();
            assert!(e.message.contains("a list of texts"), "{body}: {}", e.message);
        }
        let events = route("GET", "/v1/events");
        for query in ["every=0", "every=61", "every=soon", "each=1", "every=1&every=2"] {
            assert_eq!(
                read(events, &[], Some(query), b"").unwrap_err().kind,
                FailureKind::Invalid,
                "{query}"
            );
        }
    }
}
