//! The OpenAPI document, made of the table. The files in `answers` say what answers look like; the
//! client tests hold real ones against them.

use serde_json::{Map, Value, json};

use crate::changes::WHAT;
use crate::failure::KINDS;
use crate::routes::ROUTES;
use crate::table::{Act, Field, Kind, Need, Place, Route};

/// The whole document.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let at = paths.entry(route.path).or_insert_with(|| json!({}));
        at[route.method.to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What a running server is and does, and how to change it. The objects \
                            of answers are those that the commands print with --json.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed on TCP, not on the unix socket.",
                },
            },
            "schemas": schemas(),
        },
    })
}

/// What answers look like, by name.
const ANSWERS: [&str; 7] = [
    include_str!("answers/cache.json"),
    include_str!("answers/devices.json"),
    include_str!("answers/explain.json"),
    include_str!("answers/scrub.json"),
    include_str!("answers/settings.json"),
    include_str!("answers/status.json"),
    include_str!("answers/volumes.json"),
];

fn schemas() -> Map<String, Value> {
    let mut all = Map::new();
    for answers in ANSWERS {
        // The tests read them, too.
        all.extend(serde_json::from_str::<Map<String, Value>>(answers).unwrap_or_default());
    }
    all.insert("Error".into(), error_schema());
    all.insert("Failure".into(), failure_schema());
    all.insert("Job".into(), job_schema());
    all.insert("Change".into(), change_schema());
    all
}

fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The answer of a route, with status 200. None where it has nothing to say.
fn answer(route: &Route) -> Option<Value> {
    let list = |name| json!({ "type": "array", "items": named(name) });
    Some(match (route.method, route.path) {
        ("GET", "/v1/status") => named("Status"),
        ("GET", "/v1/health") => named("Health"),
        ("GET", "/v1/clients") => list("Client"),
        ("GET", "/v1/volumes") => list("Volume"),
        ("GET", "/v1/volumes/{name}") => named("Volume"),
        ("GET", "/v1/volumes/{name}/first-data") => named("FirstData"),
        ("PUT", "/v1/volumes/{name}/limit") => named("VolumeLimitChange"),
        ("GET", "/v1/cache") => named("Cache"),
        (_, path) if path.starts_with("/v1/scrub") => named("Scrub"),
        ("GET", "/v1/devices") => list("Device"),
        (_, "/v1/devices/{id}/size") => named("DeviceSize"),
        (_, "/v1/devices/rebalance" | "/v1/pool/copies") => named("Moves"),
        (_, path) if path.starts_with("/v1/devices") => named("DeviceMoves"),
        (_, path) if path.starts_with("/v1/moves") => named("Moves"),
        ("GET", "/v1/explain") => named("Explanation"),
        ("GET", "/v1/config") => named("Config"),
        ("GET", "/v1/settings") => list("Setting"),
        ("GET", "/v1/settings/{key}") => named("Setting"),
        ("PUT", "/v1/settings/{key}") => named("SettingChange"),
        ("GET", "/v1/jobs") => list("Job"),
        ("GET", "/v1/openapi.json") => json!({ "type": "object" }),
        _ => return None,
    })
}

fn error_schema() -> Value {
    json!({ "type": "object", "required": ["error"], "properties": { "error": named("Failure") } })
}

fn failure_schema() -> Value {
    let kinds: Vec<&str> = KINDS.iter().map(|kind| kind.0).collect();
    json!({
        "type": "object",
        "description": "Why something was not done",
        "required": ["kind", "message"],
        "properties": {
            "kind": { "type": "string", "enum": kinds, "description": "for programs" },
            "message": { "type": "string", "description": "for people" },
        },
    })
}

fn job_schema() -> Value {
    json!({
        "type": "object",
        "required": ["job", "request", "state", "seconds", "progress"],
        "properties": {
            "job": { "type": "integer" },
            "request": { "type": "string" },
            "state": { "enum": ["running", "done", "failed", "cancelled"] },
            "seconds": { "type": "number" },
            "progress": {
                "type": ["object", "null"],
                "description": "how much is written back; null of a job that writes nothing back",
                "required": ["done_bytes", "total_bytes"],
                "properties": {
                    "done_bytes": { "type": "integer", "minimum": 0 },
                    "total_bytes": { "type": "integer", "minimum": 0 },
                },
            },
            "outcome": {
                "anyOf": [named("GcStatus"), { "type": "null" }],
                "description": "of a job that is done: garbage collection as it is then, or null",
            },
            "error": {
                "$ref": "#/components/schemas/Failure",
                "description": "of a job that failed",
            },
        },
    })
}

fn change_schema() -> Value {
    let names: Vec<&str> = WHAT.iter().map(|one| one.0).collect();
    let rows: Vec<String> = WHAT.iter().map(|(name, what)| format!("{name}: {what}")).collect();
    json!({
        "type": "object",
        "required": ["what", "name", "from", "to", "at"],
        "properties": {
            "what": { "enum": names, "description": rows.join(". ") },
            "name": { "type": "string", "description": "of the device, volume, job or page" },
            "from": { "description": "what it was; null: it was not there" },
            "to": { "description": "what it is; null: it is not there any more" },
            "at": { "type": "number", "description": "when it was seen, in seconds of Unix time" },
        },
    })
}

fn history_schema() -> Value {
    let number = json!({ "type": ["number", "null"] });
    json!({
        "type": "object",
        "required": ["every_seconds", "next", "seconds_ago", "series"],
        "properties": {
            "every_seconds": { "type": "integer", "description": "between two samples" },
            "next": { "type": "integer", "description": "what to send as from, for later ones" },
            "seconds_ago": {
                "type": "array", "items": { "type": "number" },
                "description": "how old each sample is, the oldest first",
            },
            "series": {
                "type": "object",
                "additionalProperties": { "type": "array", "items": number },
                "description": "a number of each sample, null where there is none; requests, bytes \
                                and carried_bytes are per second, of the time since the sample \
                                before",
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut shown = json!({ "summary": route.what, "responses": responses(route) });
    let mut names = route.path.split(['{', '}']).skip(1).step_by(2);
    let parameters: Vec<Value> = route
        .fields
        .iter()
        .filter_map(|field| match field.place {
            Place::Path => Some(parameter(field, "path", names.next().unwrap_or(field.name))),
            Place::Query | Place::Here => Some(parameter(field, "query", field.name)),
            Place::Body | Place::Fixed => None,
        })
        .collect();
    if !parameters.is_empty() {
        shown["parameters"] = json!(parameters);
    }
    if route.at(Place::Body).next().is_some() {
        let must = |field: &Field| (field.need == Need::Must).then_some(field.name);
        let required: Vec<&str> = route.at(Place::Body).filter_map(must).collect();
        let properties: Map<String, Value> =
            route.at(Place::Body).map(|field| (field.name.to_owned(), schema(field))).collect();
        shown["requestBody"] = json!({
            "required": !required.is_empty(),
            "content": { "application/json": { "schema": {
                "type": "object",
                "required": required,
                "properties": properties,
                "additionalProperties": false,
            } } },
        });
    }
    shown
}

fn parameter(field: &Field, place: &str, name: &str) -> Value {
    let mut schema = schema(field);
    let what = schema.as_object_mut().and_then(|s| s.remove("description"));
    let required = field.need == Need::Must;
    json!({
        "name": name, "in": place, "required": required, "description": what, "schema": schema,
    })
}

fn schema(field: &Field) -> Value {
    let mut shown = match field.kind {
        Kind::Text => json!({ "type": "string" }),
        Kind::Name => json!({ "type": "string", "minLength": 1, "maxLength": 64 }),
        Kind::Scalar => json!({ "type": ["string", "number"] }),
        Kind::Word(words) => json!({ "type": "string", "enum": words }),
        Kind::Whole(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Flag => json!({ "type": "boolean" }),
    };
    if field.place == Place::Body && field.need != Need::Must {
        // An absent field and one that is null say the same.
        let Some(one) = shown["type"].as_str().map(str::to_owned) else { return shown };
        shown["type"] = json!([one, "null"]);
    }
    shown["description"] = json!(field.what);
    if let Need::Else(default) = field.need {
        shown["default"] = serde_json::from_str(default).unwrap_or(Value::Null);
    }
    shown
}

fn responses(route: &Route) -> Value {
    let body = |what: &str, kind: &str, schema: Value| {
        let content = json!({ kind: { "schema": schema } });
        json!({ "description": what, "content": content })
    };
    let whole = |schema| body("the answer", "application/json", schema);
    let done = || json!({ "description": "it is done, and there is nothing to say" });
    let job = || named("Job");
    let error = body("an error", "application/json", named("Error"));
    let mut all = json!({ "default": error });
    match route.act {
        Act::Ask(..) | Act::Health | Act::OpenApi | Act::Jobs => match answer(route) {
            Some(schema) => all["200"] = whole(schema),
            None => all["204"] = done(),
        },
        Act::History => all["200"] = body("the last hour", "application/json", history_schema()),
        Act::Job(_) => {
            all["200"] = body("the job has ended", "application/json", job());
            all["202"] = body(
                "the job runs",
                "application/json",
                json!({
                    "type": "object", "required": ["job"],
                    "properties": { "job": { "type": "integer" } },
                }),
            );
        }
        Act::OneJob | Act::CancelJob => all["200"] = body("the job", "application/json", job()),
        Act::Events => {
            let what = "an event status in each look, whose data is the status; before it an \
                        event change for each thing that has changed since the last look, whose \
                        data is a Change; an event error where the server ends";
            let data = json!({
                "status": named("Status"), "change": named("Change"), "error": named("Failure"),
            });
            let events = json!({ "type": "string", "x-event-data": data });
            all["200"] = body(what, "text/event-stream", events);
        }
        Act::Metrics => all["200"] = body("metrics", "text/plain", json!({ "type": "string" })),
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written anew by `FOREBAY_WRITE_OPENAPI=1 cargo test -p http-api`.
    #[test]
    fn the_document_is_the_one_that_is_kept() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let made = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("FOREBAY_WRITE_OPENAPI").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap();
        assert!(made == kept, "docs/openapi.json is not what the table says");
    }

    #[test]
    fn every_schema_that_is_named_is_there() {
        let all = document();
        let schemas = all["components"]["schemas"].as_object().unwrap();
        let text = all.to_string();
        let named = |name: &str| text.contains(&format!("\"#/components/schemas/{name}\""));
        let parts = text.split("\"#/components/schemas/").skip(1);
        for name in parts.map(|rest| rest.split('"').next().unwrap()) {
            assert!(schemas.contains_key(name), "{name} is in none of the files in answers");
        }
        for name in schemas.keys() {
            assert!(named(name), "{name} is not used");
        }
        let of = |text| serde_json::from_str::<Map<String, Value>>(text).unwrap().len();
        // Those that are made here: Change, Error, Failure, Job.
        assert_eq!(schemas.len(), ANSWERS.map(of).iter().sum::<usize>() + 4, "one is there twice");
    }

    /// An object without a type or a description for each of its fields.
    fn undescribed(at: &str, schema: &Value, found: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            let kinds = ["type", "enum", "anyOf", "$ref"];
            let any = matches!(at.as_str(), "Change.from" | "Change.to");
            if !any && !kinds.iter().any(|kind| field.get(kind).is_some()) {
                found.push(at);
            }
        }
        let parts = schema["required"].as_array().into_iter().flatten();
        let missing = |name: &&Value| schema["properties"].get(name.as_str().unwrap()).is_none();
        found.extend(parts.filter(missing).map(|name| format!("{at}.{name} is required")));
    }

    #[test]
    fn every_answer_and_field_is_described() {
        let all = document();
        let mut found = Vec::new();
        for (name, schema) in all["components"]["schemas"].as_object().unwrap() {
            undescribed(name, schema, &mut found);
        }
        for route in ROUTES.iter().filter(|route| route.method == "GET") {
            let said = matches!(route.act, Act::Ask(..)) && answer(route).is_none();
            found.extend(said.then(|| route.path.to_owned()));
        }
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn every_name_in_a_path_is_a_field() {
        for route in ROUTES {
            let names = route.path.matches('{').count();
            assert_eq!(route.at(Place::Path).count(), names, "{} {}", route.method, route.path);
        }
    }
}
