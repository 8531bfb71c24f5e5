//! The OpenAPI document, made of the table of routes and of the types of answers.

use model::change::{Change, LastChanges};
use model::health::Health;
use model::history::History;
use model::job::{Job, JobStarted};
use model::operations::Advice;
use model::setting::Setting;
use model::snapshot::Snapshot;
use model::volume::Volume;
use model::{Failure, Status, Verb, request};
use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::routes::ROUTES;
use crate::table::{Act, Field, Kind, Need, Place, Route, ShownPart};

/// The schemas of answers, as the document names them.
struct Schemas(SchemaGenerator);

impl Schemas {
    fn new() -> Schemas {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        settings.contract = Contract::Serialize;
        Schemas(SchemaGenerator::new(settings))
    }

    /// A reference to the schema of `T`, which the document then has.
    fn of<T: JsonSchema>(&mut self) -> Value {
        tidied(self.0.subschema_for::<T>().to_value())
    }

    /// The schema of the answer to a verb; nothing if there is nothing to say.
    fn of_answer(&mut self, verb: &str) -> Option<Value> {
        request::answer_schema(verb, &mut self.0).map(|schema| tidied(schema.to_value()))
    }

    /// All schemas that were referred to, by name.
    fn all(mut self) -> Map<String, Value> {
        let found = self.0.take_definitions(true);
        found.into_iter().map(|(name, schema)| (name, tidied(schema))).collect()
    }
}

/// A schema as OpenAPI tools read it best: an enum of words is one list, whose description has what
/// each word means; descriptions are one line; `format` and `default`, which only say what Rust
/// has, are left out.
fn tidied(schema: Value) -> Value {
    let Value::Object(mut fields) = schema else { return schema };
    fields.remove("format");
    fields.remove("default");
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    if let Some(words) = fields.get("oneOf").and_then(words_of) {
        fields.remove("oneOf");
        let means = words.iter().map(|(word, what)| format!("{word}: {what}"));
        let before = fields.get("description").and_then(Value::as_str).map(str::to_owned);
        let text: Vec<String> = before.into_iter().chain(means).collect();
        fields.insert("description".into(), json!(text.join(" ")));
        fields.insert("type".into(), json!("string"));
        fields.insert("enum".into(), words.iter().map(|(word, _)| word.clone()).collect());
    }
    let inner = fields.into_iter().map(|(name, value)| {
        let value = match value {
            Value::Array(all) => Value::Array(all.into_iter().map(tidied).collect()),
            Value::Object(all) if name == "properties" => {
                Value::Object(all.into_iter().map(|(name, one)| (name, tidied(one))).collect())
            }
            other => tidied(other),
        };
        (name, value)
    });
    Value::Object(inner.collect())
}

/// The words of an enum, each with what it means; nothing if these are no words.
fn words_of(alternatives: &Value) -> Option<Vec<(String, String)>> {
    let one = |schema: &Value| {
        let text = |name: &str| Some(schema.get(name)?.as_str()?.to_owned());
        let what = text("description")?.split_whitespace().collect::<Vec<_>>().join(" ");
        Some((text("const")?, what))
    };
    alternatives.as_array()?.iter().map(one).collect()
}

/// The whole document.
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES.iter() {
        let at = paths.entry(route.path).or_insert_with(|| json!({}));
        at[route.method.to_lowercase()] = operation(route, &mut schemas);
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
            "schemas": schemas.all(),
        },
    })
}

/// The answer of a route, with status 200. None where there is nothing to say.
fn answer(route: &Route, schemas: &mut Schemas) -> Option<Value> {
    match route.act {
        Act::Ask(verb, ShownPart::Whole) => schemas.of_answer(verb),
        Act::Ask(_, ShownPart::Cache) => Some(schemas.of::<model::cache::CacheStatus>()),
        Act::Ask(_, ShownPart::Devices) => Some(schemas.of::<Vec<model::device::DeviceStatus>>()),
        Act::Ask(request::SnapshotList::WORD, ShownPart::Named) => Some(schemas.of::<Snapshot>()),
        Act::Ask(_, ShownPart::Named) => Some(schemas.of::<Volume>()),
        Act::Ask(_, ShownPart::First) => Some(schemas.of::<Setting>()),
        Act::Health => Some(schemas.of::<Health>()),
        Act::Advice => Some(schemas.of::<Advice>()),
        Act::Jobs => Some(schemas.of::<Vec<Job>>()),
        Act::OpenApi => Some(json!({ "type": "object" })),
        _ => None,
    }
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let mut shown = json!({ "summary": route.what, "responses": responses(route, schemas) });
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
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
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

fn responses(route: &Route, schemas: &mut Schemas) -> Value {
    let body = |what: &str, kind: &str, schema: Value| {
        let content = json!({ kind: { "schema": schema } });
        json!({ "description": what, "content": content })
    };
    let whole = |schema| body("the answer", "application/json", schema);
    let done = || json!({ "description": "it is done, and there is nothing to say" });
    let error = json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": schemas.of::<Failure>() },
    });
    let error = body("an error", "application/json", error);
    let mut all = json!({ "default": error });
    match route.act {
        Act::Ask(..) | Act::Health | Act::Advice | Act::OpenApi | Act::Jobs => {
            match answer(route, schemas) {
                Some(schema) => all["200"] = whole(schema),
                None => all["204"] = done(),
            }
        }
        Act::History => {
            all["200"] = body("the last hour", "application/json", schemas.of::<History>())
        }
        Act::Changes => {
            let schema = schemas.of::<LastChanges>();
            all["200"] = body("the last changes", "application/json", schema);
        }
        Act::Job(_) => {
            all["200"] = body("the job has ended", "application/json", schemas.of::<Job>());
            all["202"] = body("the job runs", "application/json", schemas.of::<JobStarted>());
        }
        Act::OneJob | Act::CancelJob => {
            all["200"] = body("the job", "application/json", schemas.of::<Job>())
        }
        Act::Events => {
            let what = "an event status in each look, whose data is the status; before it an \
                        event change for each thing that has changed since the last look, whose \
                        data is a Change; an event error where the server ends";
            let data = json!({
                "status": schemas.of::<Status>(),
                "change": schemas.of::<Change>(),
                "error": schemas.of::<Failure>(),
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
        let parts = text.split("\"#/components/schemas/").skip(1);
        for name in parts.map(|rest| rest.split('"').next().unwrap()) {
            assert!(schemas.contains_key(name), "{name} has no schema");
        }
    }

    /// A field without a type, or without a description of its own or of its type.
    fn undescribed(at: &str, schema: &Value, found: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            let kinds = ["type", "enum", "anyOf", "$ref"];
            if !kinds.iter().any(|kind| field.get(kind).is_some()) || field["description"].is_null()
            {
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
            found.extend(schema["description"].is_null().then(|| name.clone()));
        }
        for route in ROUTES.iter().filter(|route| route.method == "GET") {
            let said =
                matches!(route.act, Act::Ask(..)) && answer(route, &mut Schemas::new()).is_none();
            found.extend(said.then(|| route.path.to_owned()));
        }
        assert!(found.is_empty(), "{found:?}");
    }

    /// What a route takes for the engine is what its request has: by name, and whether it may be
    /// absent.
    #[test]
    fn fields_are_those_of_the_request() {
        for route in ROUTES.iter() {
            let (Act::Ask(verb, _) | Act::Job(verb)) = route.act else { continue };
            let mut schemas = Schemas::new();
            let schema = request::schema(verb, &mut schemas.0).expect(verb).to_value();
            let at = format!("{} {}", route.method, route.path);
            let takes: Vec<&Field> = route
                .fields
                .iter()
                .filter(|field| field.place != Place::Here)
                .filter(|_| !matches!(route.act, Act::Ask(_, ShownPart::Named)))
                .collect();
            for field in &takes {
                assert!(schema["properties"].get(field.name).is_some(), "{at}: {}", field.name);
            }
            let gives = |name: &str| {
                takes.iter().any(|field| field.name == name && field.need != Need::May)
            };
            for name in schema["required"].as_array().into_iter().flatten() {
                let name = name.as_str().unwrap();
                let may = schema["properties"][name]["type"].is_array();
                assert!(may || gives(name) || takes.iter().any(|f| f.name == name), "{at}: {name}");
            }
        }
    }

    #[test]
    fn every_name_in_a_path_is_a_field() {
        for route in ROUTES.iter() {
            let names = route.path.matches('{').count();
            assert_eq!(route.at(Place::Path).count(), names, "{} {}", route.method, route.path);
        }
    }
}
