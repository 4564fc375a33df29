"""The OpenAPI document of a running worker, against the worker: openapi_document.py URL KEY

It is valid OpenAPI 3.1; it has the routes that the worker tells people; each example in it is
accepted; every answer has a status, a type and a shape that it names; every field of a request in it
is known to the reader. KEY is the operator's. At the end the worker is shut down.
"""

import json
import re
import sys
import urllib.error
import urllib.request

import jsonschema_rs
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

URL, KEY = sys.argv[1:]

LAST_EVENTS = ["end", "[DONE]", "message_stop", "response.completed", "response.incomplete"]

# Without an example: the model is no reranker.
OF_OTHER_MODELS = ["/v1/rerank", "/rerank"]

# In this order, behind everything else.
LAST = ["/restart", "/shutdown"]


def ask(method, path, body=None, key=KEY):
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers["Content-Type"], answer.read().decode()


DOCUMENT = json.loads(ask("GET", "/openapi.json")[2])


def resolve(schema):
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def check(value, schema, place):
    """The value is as the schema says, and has no field that the schema does not name."""
    whole = {**schema, "components": DOCUMENT["components"]}
    errors = list(Draft202012Validator(whole).iter_errors(value))
    assert not errors, f"{place}: {errors[0].message}"
    check_names(value, schema, place)


def check_names(value, schema, place):
    schema = resolve(schema)
    if isinstance(value, dict) and "properties" in schema:
        for name, inner in value.items():
            assert name in schema["properties"], f"{place}: {name} is not in the document"
            check_names(inner, schema["properties"][name], f"{place}.{name}")
    if isinstance(value, list) and "items" in schema:
        for inner in value:
            check_names(inner, schema["items"], f"{place}[]")
    for branch in schema.get("oneOf", []):
        whole = {**branch, "components": DOCUMENT["components"]}
        if Draft202012Validator(whole).is_valid(value):
            check_names(value, branch, place)
    for branch in schema.get("anyOf", []):
        branch_type = resolve(branch).get("type")
        if branch_type == "object" and isinstance(value, dict) and "error" not in value:
            if "error" not in resolve(branch).get("properties", {}):
                check_names(value, branch, place)


def events(text):
    for event in text.strip().split("\n\n"):
        lines = [line for line in event.split("\n") if not line.startswith(":")]
        if lines:
            yield dict(line.split(": ", 1) for line in lines)


def schema_of_data(schema, event):
    """What the JSON in an event's data has to be, which only we look into."""
    for branch in schema.get("anyOf", [schema]):
        properties = branch["properties"]
        if event.get("event") in properties.get("event", {"enum": [None]})["enum"]:
            data = properties["data"]
            return data.get("anyOf", [data])[0]["contentSchema"]
    raise AssertionError(f"{event} is not in the document")


def check_stream(place, schema, text):
    seen = []
    for event in events(text):
        seen.append(event.get("event", event["data"]))
        check(event, schema, f"{place}: {event}")
        if event["data"] != "[DONE]":
            check(json.loads(event["data"]), schema_of_data(schema, event), f"{place}: {event}")
    assert seen[-1] in LAST_EVENTS, f"{place} ends with {seen[-1]}"


def check_answer(method, path, operation, answer, wanted):
    status, content_type, text = answer
    place = f"{method} {path}: {status}"
    assert status in wanted, f"{place}, not {wanted}: {text}"
    assert str(status) in operation["responses"], f"{place} is not in the document: {text}"
    content = operation["responses"][str(status)]["content"]
    assert content_type in content, f"{place} is {content_type}"
    if content_type == "text/event-stream":
        check_stream(place, content[content_type]["schema"], text)
    elif content_type == "application/x-ndjson":
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            check(line, content[content_type]["schema"], place)
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True], place
    elif content_type == "application/json":
        check(json.loads(text), content[content_type]["schema"], place)
    else:
        check(text, content[content_type]["schema"], place)


def fields(schema):
    """All fields of a body, which may be an object or an object with rules."""
    objects = [schema, *schema.get("allOf", [])]
    return next(it["properties"] for it in objects if it.get("additionalProperties") is False)


def check_requests(method, path, operation):
    content = operation["requestBody"]["content"]["application/json"]
    # Schemathesis makes no request of a schema that becomes too large in its canonical form.
    whole = {**content["schema"], "components": DOCUMENT["components"]}
    canonical = jsonschema_rs.canonicalize(whole, draft=jsonschema_rs.Draft202012, validate_formats=True)
    assert canonical.kind.value != "raw", f"{path}: its schema has no canonical form"
    examples = content.get("examples", {})
    assert examples or path in OF_OTHER_MODELS, f"{path} has no example"
    for name, example in examples.items():
        check(example["value"], content["schema"], f"{path}: example {name}")
        answer = ask(method, path, example["value"])
        check_answer(method, path, operation, answer, {200, 202})
    for body in [{}, [], {"no such field": 1}]:
        assert not Draft202012Validator(content["schema"]).is_valid(body), body
        check_answer(method, path, operation, ask(method, path, body), {400})
    # A value that no field takes: each name is known, and this is what is wrong with it. Not more
    # at once than mistakes are listed.
    names = list(fields(content["schema"]))
    for start in range(0, len(names), 16):
        chosen = names[start : start + 16]
        answer = ask(method, path, {name: [[[7]]] for name in chosen})
        check_answer(method, path, operation, answer, {400})
        mistakes = answer[2]
        for name in chosen:
            assert re.search(rf"\b{name}\b", mistakes), f"{path}: {name} is taken: {mistakes}"
        assert "is no field of this request" not in mistakes, f"{path}: {mistakes}"


def check_operation(method, path, operation):
    needs_key = operation.get("security") == [{"key": []}]
    # Each has a value that is there, and one that is not.
    if path == "/crashes/{id}":
        crash = json.loads(ask("GET", "/crashes")[2])["crashes"][0]["id"]
        real = path.replace("{id}", crash)
    elif "{name}" in path:
        real = path.replace("{name}", operation["parameters"][0]["example"])
    else:
        # Also a job whose client is waited for, which is never there.
        real = path
    if needs_key:
        check_answer(method, path, operation, ask(method, real, key=None), {401})
    if "{" in path:
        other = path.split("{")[0] + "other"
        check_answer(method, path, operation, ask(method, other), {404})
    if "requestBody" in operation:
        check_requests(method, path, operation)
    elif "{" not in real:
        check_answer(method, path, operation, ask(method, real), {200, 202})


def main():
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    operations = [
        (method.upper(), path, operation)
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
    ]
    told = json.loads(ask("GET", "/")[2])["routes"]
    assert told == [f"{method} {path}" for method, path, _ in operations], told
    ids = [operation["operationId"] for _, _, operation in operations]
    assert len(set(ids)) == len(ids), ids
    operations.sort(key=lambda it: LAST.index(it[1]) if it[1] in LAST else -1)
    for method, path, operation in operations:
        check_operation(method, path, operation)
    print(f"{len(operations)} operations are as the document says")


main()
