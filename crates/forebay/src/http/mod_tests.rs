//! The table of routes and the control protocol have the same verbs and fields.

use http_api::routes::ROUTES;
use http_api::table::{Field, Kind, Need, Place, Route};
use serde_json::{Map, json};

use super::*;

fn sample(field: &Field) -> Value {
    match (field.need, field.kind) {
        (Need::Else(text), _) => serde_json::from_str(text).unwrap(),
        (_, Kind::Text | Kind::Name | Kind::Scalar) => json!("a"),
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
    if route.method == "GET" && route.path == "/v1/volumes/{name}" {
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

/// What only a command on the server's machine needs: `forebay mount`.
const OF_COMMANDS: [&str; 1] = ["volume-data"];

/// The protocol itself lists its verbs. Those that only commands need are left out.
fn verbs() -> Vec<String> {
    let e = serde_json::from_value::<Request>(json!({ "request": "?" })).unwrap_err().to_string();
    let (_, list) = e.split_once("expected one of").unwrap();
    let all = list.split('`').skip(1).step_by(2);
    all.filter(|verb| !OF_COMMANDS.contains(verb)).map(str::to_owned).collect()
}

/// Names between quotes of an error that says what it expected.
fn expected(request: Value) -> Vec<String> {
    let e = serde_json::from_value::<Request>(request).unwrap_err().to_string();
    let known = e.split_once("expected").map_or("", |(_, list)| list).to_owned();
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
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
    let mut known: Vec<(String, Vec<String>)> = expected(json!({ "request": "?" }))
        .into_iter()
        .map(|verb| (verb.clone(), expected(json!({ "request": verb, "?": 1 }))))
        .collect();
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
    let verbs = verbs();
    assert!(verbs.len() > 20, "{verbs:?}");
    for verb in &verbs {
        let found = ROUTES.iter().any(|route| route.verb() == Some(verb));
        assert!(found, "{verb} has no route in crates/http-api/src/routes.rs");
    }
    for route in ROUTES {
        let known = route.verb().is_none_or(|verb| verbs.iter().any(|v| v == verb));
        assert!(known, "{} {} asks for what is not there", route.method, route.path);
    }
}

#[test]
fn every_field_of_a_verb_can_be_sent() {
    for verb in verbs() {
        let routes: Vec<&Route> = ROUTES.iter().filter(|r| r.verb() == Some(&verb)).collect();
        let e = json!({ "request": verb, "?": 1 });
        let text = serde_json::from_value::<Request>(e).unwrap_err().to_string();
        let known = text.split_once("expected").map_or("", |(_, list)| list);
        for name in known.split('`').skip(1).step_by(2) {
            let sent = routes.iter().any(|r| r.fields.iter().any(|f| f.name == name));
            assert!(sent, "no route of {verb} has its field {name}");
        }
    }
}
