//! The table of routes and the control protocol have the same verbs and fields. Answers are what
//! the OpenAPI document says.

use http_api::routes::ROUTES;
use http_api::table::{Act, Field, Kind, Need, Place, Route, ShownPart};
use model::request;
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::*;

fn sample(field: &Field) -> Value {
    match (field.need, field.kind) {
        (Need::Else(text), _) => serde_json::from_str(text).unwrap(),
        (_, Kind::Text | Kind::Name | Kind::Scalar) => json!("a"),
        (_, Kind::Texts) => json!(["a"]),
        (_, Kind::Word(words)) => json!(words[0]),
        (_, Kind::Whole(least, _)) => json!(least),
        (_, Kind::Flag) => json!(true),
    }
}

/// What a route asks for; without the field of this name.
fn asked(route: &Route, without: &str, may: bool) -> serde_json::Result<Request> {
    let mut fields = Map::new();
    for field in route.fields.iter().filter(|f| f.place != Place::Here && f.name != without) {
        if may || field.need != Need::May {
            fields.insert(field.name.into(), sample(field));
        }
    }
    // A name that picks one of a list is not asked for.
    if matches!(route.act, Act::Ask(_, ShownPart::Named)) {
        fields.clear();
    }
    fields.insert("request".into(), route.verb().unwrap().into());
    serde_json::from_value(Value::Object(fields))
}

#[test]
fn every_route_asks_for_what_the_protocol_has() {
    for route in ROUTES.iter().filter(|route| route.verb().is_some()) {
        let name = format!("{} {}", route.method, route.path);
        for may in [false, true] {
            asked(route, "", may).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        for field in route.fields.iter().filter(|f| f.place == Place::Body) {
            let without = asked(route, field.name, true);
            // What the protocol needs is there always.
            assert!(without.is_ok() || field.need != Need::May, "{name} needs {}", field.name);
        }
    }
}

/// The fields of a verb.
fn fields_of(verb: &str) -> Vec<String> {
    let mut generator = SchemaGenerator::default();
    let schema = request::schema(verb, &mut generator).expect(verb).to_value();
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields.map(|(name, _)| name.clone()).collect()
}

#[test]
fn the_document_of_the_control_socket_has_every_verb_and_field() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once("## The control socket").unwrap();
    let names = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let mut rows: Vec<(String, Vec<String>)> = rows
        .map(|row| row.split('|').skip(1).map(names))
        .map(|mut cells| (cells.next().unwrap().remove(0), cells.next().unwrap()))
        .collect();
    rows.sort();
    let sorted = |mut fields: Vec<String>| {
        fields.sort();
        fields
    };
    let mut known: Vec<(String, Vec<String>)> =
        request::WORDS.iter().map(|verb| ((*verb).to_owned(), fields_of(verb))).collect();
    known.sort();
    assert!(known.len() > 30, "{known:?}");
    let verbs = |all: &[(String, Vec<String>)]| -> Vec<String> {
        all.iter().map(|(verb, _)| verb.clone()).collect()
    };
    assert_eq!(verbs(&rows), verbs(&known), "docs/configuration.md and the protocol");
    for ((verb, fields), (_, known)) in rows.into_iter().zip(known) {
        assert_eq!(sorted(fields), sorted(known), "{verb} in docs/configuration.md");
    }
}

#[test]
fn every_verb_of_the_protocol_has_a_route() {
    for verb in request::WORDS {
        let found = ROUTES.iter().any(|route| route.verb() == Some(*verb));
        assert!(found, "{verb} has no route in crates/http-api/src/routes.rs");
    }
    for route in ROUTES.iter() {
        let known = route.verb().is_none_or(|verb| request::WORDS.contains(&verb));
        assert!(known, "{} {} asks for what is not there", route.method, route.path);
    }
}

#[test]
fn every_field_of_a_verb_can_be_sent() {
    for verb in request::WORDS {
        let routes: Vec<&Route> = ROUTES.iter().filter(|r| r.verb() == Some(*verb)).collect();
        for name in fields_of(verb) {
            let sent = routes.iter().any(|r| r.fields.iter().any(|f| f.name == name));
            assert!(sent, "no route of {verb} has its field {name}");
        }
    }
}

mod answers {
    //! Answers that the program makes, and what the OpenAPI document says of them. The client tests
    //! do the same with a whole server.

    use std::collections::BTreeSet;
    use std::path::Path;

    use base::{Duration, Instant, VolumeId};
    use http_api::openapi::document;
    use ledger::explain::Question;
    use ledger::{Holder, Ledger, Moment, Reason, RequestClass, WaitCause};
    use model::Status;
    use model::cache::{CacheState, CacheStatus};
    use model::device::Emulate;
    use model::setting::{AccessRule, Config, ConfigEntry, NamedDevice, PlaceItem, PlaceValue};
    use serde::Serialize;
    use serde_json::{Value, json};

    use crate::config::chosen::{ChosenSettings, Source, known};
    use crate::config::places::Places;
    use crate::config::shown;
    use crate::config::values;
    use crate::serve::{explain, health};

    /// A schema, or the one that it refers to.
    fn whole(all: &Value, schema: &Value) -> Value {
        match schema["$ref"].as_str() {
            Some(name) => whole(all, &all[name.rsplit('/').next().unwrap()]),
            None => schema.clone(),
        }
    }

    fn is_of(kind: &Value, value: &Value) -> bool {
        match kind.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            other => panic!("{other}"),
        }
    }

    /// What is wrong with a value. A field that the schema does not have is wrong, too.
    fn faults(all: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        let schema = whole(all, schema);
        if let Some(ways) = schema["anyOf"].as_array() {
            let tried = ways.iter().map(|way| faults(all, way, value, at));
            return tried.min_by_key(Vec::len).unwrap();
        }
        let kinds = match &schema["type"] {
            Value::Array(kinds) => kinds.clone(),
            kind => vec![kind.clone()],
        };
        let one_of = schema["enum"].as_array();
        if !kinds.iter().any(|kind| is_of(kind, value))
            || one_of.is_some_and(|o| !o.contains(value))
        {
            return vec![format!("{at} is {value}")];
        }
        let mut found = Vec::new();
        for (n, one) in value.as_array().into_iter().flatten().enumerate() {
            found.extend(faults(all, &schema["items"], one, &format!("{at}[{n}]")));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let missing = value.get(name.as_str().unwrap()).is_none();
            found.extend(missing.then(|| format!("{at} has no {name}")));
        }
        for (name, one) in value.as_object().into_iter().flatten() {
            match schema["properties"].get(name) {
                Some(part) => found.extend(faults(all, part, one, &format!("{at}.{name}"))),
                None => found.push(format!("{at}.{name} is not in the document")),
            }
        }
        found
    }

    fn check(name: &str, value: &impl Serialize) {
        let value = &json!(value);
        let all = &document()["components"]["schemas"];
        let found = faults(all, &all[name], value, name);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn classes_of_io_are_those_of_the_queues() {
        let all = &document()["components"]["schemas"];
        let listed = all["IoByClass"]["required"].as_array().unwrap().iter();
        let listed: BTreeSet<&str> = listed.map(|word| word.as_str().unwrap()).collect();
        assert_eq!(listed, BTreeSet::from(queue::Class::ALL.map(queue::Class::name)));
    }

    #[test]
    fn settings_are_as_they_are_described() {
        let mut places = Places::default();
        let emulated = NamedDevice { path: "/c".into(), emulate: Emulate::Hdd };
        let devices =
            PlaceValue::List(vec![PlaceItem::Text("/a".into()), PlaceItem::Device(emulated)]);
        let rule = |client: &str, volume: &str, read_only| {
            let (client, volumes) = (client.into(), vec![volume.into()]);
            PlaceItem::Rule(AccessRule { client, volumes, read_only })
        };
        let rules = PlaceValue::List(vec![rule("vm1", "vm1-*", true), rule("*", "iso", false)]);
        places.put("devices", devices, Source::Option);
        places.put("access", rules, Source::File);
        places.put("tls.verify_peer", PlaceValue::Flag(true), Source::Default);
        places.put("cache.path", PlaceValue::None, Source::Default);
        let mut chosen = ChosenSettings::default();
        let at = values::Value::TimeOfDay(Some(150));
        chosen.put(known("scrub.at"), at, Source::Set).unwrap();
        check("Config", &shown::all(&places, &chosen, None));
        let all = shown::all(&places, &chosen, Some(Path::new("/f.toml")));
        check("Config", &all);
        for (key, ..) in chosen.iter() {
            check("Setting", &shown::setting(&chosen, key));
        }
        let places = all.settings.iter().filter(|one| matches!(one, ConfigEntry::Place(_)));
        assert_eq!(places.map(|one| check("Place", one)).count(), 4);
        // A reader gets back what was written.
        let read: Config = serde_json::from_value(json!(all)).unwrap();
        assert_eq!(read, all);
    }

    #[test]
    fn explanations_are_as_they_are_described() {
        let at = |us: u64| Moment::at(Instant(us * 1_000));
        let ledger = Ledger::default();
        let disk = ledger.place("pool device sda");
        let holder = Holder::of("write-back");
        for (n, kind) in RequestClass::ALL.into_iter().enumerate() {
            let story = ledger.begin(kind, 4096, 512, at(0));
            if n != 1 {
                story.set_volume(VolumeId(n as u32));
            }
            let tree = story.enter(Reason::Tree.into(), at(1));
            let queue =
                story.enter(WaitCause { reason: Reason::DeviceQueue, place: disk, holder }, at(2));
            story.leave(queue, Moment { late: Duration::from_micros(30), ..at(50_000) });
            story.leave(tree, at(50_001));
            ledger.end(&story, at(50_100));
        }
        ledger.moved(disk, holder, 1 << 20, Instant(50_000_000));
        let slow =
            Question { volume: None, kind: None, since: Instant(0), slower_than_ns: 20_000_000 };
        let now = at(60_000_000);
        let hangs = ledger.begin(RequestClass::Flush, 0, 0, at(0));
        let name = |id: VolumeId| (id.0 > 2).then(|| format!("volume {}", id.0));
        let told = explain::explanation(&ledger, now, &slow, name);
        check("Explanation", &told);
        assert_eq!(told.classes.len(), RequestClass::ALL.len());
        assert_eq!(told.slowest.len(), RequestClass::ALL.len());
        assert!(told.classes[0].causes[0].bytes_per_second.is_some(), "{told:?}");
        let none = Question { since: now.now, slower_than_ns: u64::MAX, ..slow };
        check("Explanation", &explain::explanation(&ledger, now, &none, name));
        let stalls = explain::Stalls::of(&ledger, now).slow_requests();
        check("SlowRequests", &stalls);
        assert_eq!((stalls.requests, stalls.under_way), (RequestClass::ALL.len() as u64, 1));
        assert_eq!(told.under_way.oldest[0].volume_id, None);
        ledger.end(&hangs, now);
    }

    #[test]
    fn problems_are_as_they_are_described() {
        let mut status = Status::default();
        status.pool.trouble = Some("no disk".into());
        let state = CacheState::Failed;
        status.cache = Some(CacheStatus { state, ..CacheStatus::default() });
        let problems = health::problems(&status);
        assert!(problems.len() > 1);
        check("Status", &status);
        problems.iter().for_each(|problem| check("Problem", problem));
    }
}
