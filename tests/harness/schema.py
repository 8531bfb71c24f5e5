"""Answers, held against the OpenAPI document: the part of JSON Schema that it uses."""

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
    "type", "enum", "minimum", "anyOf", "items", "prefixItems", "minItems", "maxItems", "required",
    "properties", "additionalProperties", "description",
}


def faults(document, schema, value, at="$"):
    """What is wrong with a value, as texts. A field that an object has and its schema has not is
    wrong, too: the document is to name all."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return faults(document, document["components"]["schemas"][name], value, at)
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
    if isinstance(value, (int, float)) and value < schema.get("minimum", value):
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
    """Fails if the answer to a request, with status 200, is not what the document says."""
    answer = document["paths"][path][method.lower()]["responses"]["200"]
    schema = answer["content"]["application/json"]["schema"]
    bad = faults(document, schema, value)
    assert not bad, f"{method} {path}: {bad[:10]}"
    return bool(schema)
