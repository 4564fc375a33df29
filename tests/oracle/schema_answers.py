"""Judges answers of `schema_walks`: valid JSON, and valid under their schema.

    schema_answers.py WALKS.jsonl

Two validators that know nothing of each other: `jsonschema` in Python, and `jsonschema_rs`, which also checks
formats. Each schema is read as of the draft that it names, and as of the newest where it is a schema there.
Prints one JSON object; says what was invalid on standard error.
"""

import collections
import json
import re
import sys

import jsonschema
import jsonschema_rs
from jsonschema.validators import validator_for

NEWEST = jsonschema.Draft202012Validator


def validators(schema):
    of_draft = validator_for(schema, default=NEWEST)
    for validator in {of_draft, NEWEST}:
        try:
            validator.check_schema(schema)
        except jsonschema.SchemaError:
            continue
        yield validator(schema, format_checker=validator.FORMAT_CHECKER).validate
    try:
        yield jsonschema_rs.validator_for(schema, validate_formats=True).validate
    except (ValueError, jsonschema_rs.ValidationError):
        pass  # A schema that is none to this one.


def wrong(answer, all_validators):
    try:
        value = json.loads(answer)
    except ValueError as error:
        return f"no JSON: {error}"
    for validate in all_validators:
        try:
            validate(value)
        except (jsonschema.ValidationError, jsonschema_rs.ValidationError) as error:
            return f"{type(error).__module__}: {error.message}"
    return None


def reason(refused):
    """What a refusal names, without places and texts of one schema."""
    keyword = re.match(r"[$\w]+ cannot be followed|format \"[^\"]*\"|multipleOf", refused)
    if keyword:
        return keyword.group()
    return re.sub(r"\(at #.*|\d+|\"[^\"]*\"", "", refused.splitlines()[0])[:80].strip()


def quantile(values, share):
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))]) if values else None


def main(path):
    counts, refusals = collections.Counter(), collections.Counter()
    compiles, masks = [], []
    for line in open(path, encoding="utf-8"):
        walk = json.loads(line)
        counts["schemas"] += 1
        compiles.append(walk["compile_us"])
        if "refused" in walk:
            counts["refused"] += 1
            refusals[reason(walk["refused"])] += 1
            continue
        counts["accepted"] += 1
        with open(walk["file"], encoding="utf-8") as file:
            schema = json.load(file)
        all_validators = list(validators(schema))
        masks += walk["mask_us"]
        counts["cut by length"] += walk["cut"]
        counts["ended by a limit"] += len(walk["failed"])
        for failure in walk["failed"]:
            print(f"limit: {walk['file']}: {failure}", file=sys.stderr)
        if not all_validators:
            counts["schemas without a validator"] += 1
            continue
        for answer in walk["answers"]:
            counts["finished"] += 1
            error = wrong(answer, all_validators)
            if error:
                counts["invalid"] += 1
                print(f"invalid: {walk['file']}: {answer!r}: {error[:300]}", file=sys.stderr)
    figures = {name: counts[name] for name in (
        "schemas", "accepted", "refused", "finished", "invalid", "cut by length",
        "ended by a limit", "schemas without a validator")}
    figures |= {f"compile {name} (us)": quantile(compiles, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    figures |= {f"mask {name} (us)": quantile(masks, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    figures["refusals"] = [{"reason": name, "schemas": count} for name, count in refusals.most_common(25)]
    print(json.dumps(figures))
    return counts["invalid"]


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1])))
