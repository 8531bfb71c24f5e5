"""Answers, held against the OpenAPI document: the part of JSON Schema that it uses."""

import functools
import json
import pathlib

TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
}
KNOWN = {
    "type", "enum", "minimum", "maximum", "anyOf", "allOf", "items", "prefixItems", "minItems",
    "maxItems", "required", "properties", "additionalProperties", "description",
}
# What commands print with --json is the answer of a route.
PRINTED = {
    "status": "/v1/status",
    "explain": "/v1/explain",
    "clients": "/v1/clients",
    "config": "/v1/config",
}


def whole(document, schema):
    """A schema with the fields of those that it builds on."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return whole(document, document["components"]["schemas"][name])
    if "allOf" not in schema:
        return schema
    assert set(schema) <= {"allOf", "description", "properties", "required"}, schema
    parts = [whole(document, part) for part in schema["allOf"]] + [schema]
    return {
        "type": "object",
        "required": [name for part in parts for name in part.get("required", [])],
        "properties": {k: v for part in parts for k, v in part.get("properties", {}).items()},
    }


def faults(document, schema, value, at="$"):
    """What is wrong with a value, as texts. A field that an object has and its schema has not is
    wrong, too: the document is to name all."""
    schema = whole(document, schema)
    assert set(schema) <= KNOWN, f"{at}: {set(schema) - KNOWN} is not understood here"
    if "anyOf" in schema:
        tried = [faults(document, one, value, at) for one in schema["anyOf"]]
        return [] if any(not bad for bad in tried) else min(tried, key=len)
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(TYPES[kind](value) for kind in kinds):
        return [f"{at} is {value!r}, not {' or '.join(kinds)}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at} is {value!r}, not one of {schema['enum']}"]
    found = []
    is_number = isinstance(value, (int, float))
    if is_number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        found.append(f"{at} is {value}")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{at} has {len(value)} items")
        first = schema.get("prefixItems", [])
        for number, one in enumerate(value):
            part = first[number] if number < len(first) else schema.get("items", {})
            found += faults(document, part, one, f"{at}[{number}]")
    if isinstance(value, dict):
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        found += [f"{at} has no {name}" for name in schema.get("required", []) if name not in value]
        for name, one in value.items():
            part = (properties or {}).get(name, others)
            if part is None and properties is not None:
                found.append(f"{at}.{name} is not in the document")
            found += faults(document, part or {}, one, f"{at}.{name}")
    return found


def check(document, method, path, value):
    """Fails if the answer to a request, with status 200, or 204 if it is `None`, is not what the
    document says."""
    answers = document["paths"][path][method.lower()]["responses"]
    status = "204" if value is None else "200"
    assert status in answers, f"{method} {path}: {status} is not in the document"
    if value is None:
        return
    bad = faults(document, answers["200"]["content"]["application/json"]["schema"], value)
    assert not bad, f"{method} {path}: {bad[:10]}"


@functools.cache
def kept():
    """The document that is kept in docs."""
    path = pathlib.Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
    return json.loads(path.read_text())


def check_printed(arguments, text):
    """Fails if what a command printed with --json is not what the document says of the answer."""
    path = PRINTED.get(str(arguments[0])) if arguments else None
    if path and "--json" in arguments:
        check(kept(), "GET", path, json.loads(text))
