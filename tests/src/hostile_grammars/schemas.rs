//! JSON Schemas.

use super::siege::{Make, Random};
use serde_json::{Map, Value, json};

pub(super) const FAMILIES: &[(&str, Make)] = &[
    ("schema in schema", nested),
    ("all of all of", nested_all_of),
    ("a large enum", large_enum),
    ("a large union", large_union),
    ("unions times unions", crossed_unions),
    ("a schema that is itself", itself),
    ("schemas that are each other", each_other),
    ("a chain of references", chain),
    ("a tree", tree),
    ("many items", many_items),
    ("a long text", long_text),
    ("patterns of repeats", patterns),
    ("names by pattern", pattern_properties),
    ("many names, none required", optional_names),
    ("many names, all required", required_names),
    ("texts of all formats", formats),
    ("narrow numbers", numbers),
    ("a large constant", constant),
];

fn held(schema: Value) -> Value {
    json!({"structured_outputs": {"json": schema}})
}

fn text(schema: String) -> Value {
    json!({"structured_outputs": {"json": schema}})
}

fn nested(random: &mut Random) -> Value {
    let open = random.one(&[
        "{\"items\":",
        "{\"additionalProperties\":",
        "{\"prefixItems\":[{}],\"items\":",
    ]);
    let times = random.size(10, 12_000);
    text(format!("{}{{}}{}", open.repeat(times), "}".repeat(times)))
}

fn nested_all_of(random: &mut Random) -> Value {
    let open = random.one(&[
        "{\"allOf\":[",
        "{\"anyOf\":[{\"type\":\"null\"},",
        "{\"allOf\":[{\"type\":\"object\"},",
    ]);
    let times = random.size(10, 126);
    text(format!("{}{{}}{}", open.repeat(times), "]}".repeat(times)))
}

fn large_enum(random: &mut Random) -> Value {
    let count = random.size(500, 20_000);
    let values: Vec<Value> = (0..count)
        .map(|it| match random.between(0, 3) {
            0 => json!(it),
            1 => json!([random.word(), it]),
            _ => json!(format!("{} {it}", random.word())),
        })
        .collect();
    held(json!({"enum": values}))
}

fn alternatives(random: &mut Random, count: usize) -> Vec<Value> {
    let one = |random: &mut Random| {
        let (first, second) = (random.word(), random.word());
        json!({
            "properties": {first.clone(): {"type": "string"}, second: {"type": "integer"}},
            "required": [first],
        })
    };
    (0..count).map(|_| one(random)).collect()
}

fn large_union(random: &mut Random) -> Value {
    let count = random.size(50, 2000);
    held(json!({"anyOf": alternatives(random, count)}))
}

fn crossed_unions(random: &mut Random) -> Value {
    let (factors, each) = (random.between(2, 8), random.between(3, 40));
    let unions = (0..factors).map(|_| json!({"anyOf": alternatives(random, each)}));
    let unions: Vec<Value> = unions.collect();
    held(json!({"type": "object", "allOf": unions}))
}

fn itself(random: &mut Random) -> Value {
    let here = json!({"$ref": "#"});
    let name = random.word();
    held(match random.between(0, 4) {
        0 => json!({"$ref": "#", "title": name}),
        1 => json!({"anyOf": [here, here], "title": name}),
        2 => json!({"allOf": [here, {"type": "object"}], "title": name}),
        3 => json!({"items": here, "minItems": random.size(2, 100_000)}),
        _ => json!({"properties": {name.clone(): here}, "required": [name]}),
    })
}

fn reference(to: impl std::fmt::Display) -> Value {
    json!({"$ref": format!("#/$defs/{to}")})
}

fn each_other(random: &mut Random) -> Value {
    let count = random.size(2, 300);
    let mut defs = Map::new();
    for it in 0..count {
        let (one, other) = (random.between(0, count - 1), random.between(0, count - 1));
        let all = [reference(one), reference(other)];
        let schema = match random.between(0, 3) {
            0 => json!({"anyOf": all}),
            1 => json!({"allOf": all}),
            2 => json!({"prefixItems": all, "items": reference(one), "minItems": 2}),
            _ => json!({"properties": {"a": all[0], "b": all[1]}, "required": ["a"]}),
        };
        defs.insert(it.to_string(), schema);
    }
    held(json!({"$ref": "#/$defs/0", "$defs": defs}))
}

fn chain(random: &mut Random) -> Value {
    let length = random.size(50, 4000);
    let also = random.one(&["object", "array", "string"]);
    let with_type = random.between(0, 1) == 1;
    let link = |it: usize| match with_type {
        true => json!({"allOf": [reference(it + 1), {"type": also}]}),
        false => reference(it + 1),
    };
    let mut defs: Map<String, Value> = (0..length).map(|it| (it.to_string(), link(it))).collect();
    defs.insert(length.to_string(), json!({"type": also}));
    held(json!({"$ref": "#/$defs/0", "$defs": defs}))
}

fn tree(random: &mut Random) -> Value {
    let width = random.size(2, 400);
    let branches: Map<String, Value> = (0..width)
        .map(|it| (format!("{}{it}", random.word()), reference("node")))
        .collect();
    let leaf =
        json!({"type": "string", "pattern": format!("^([a-z]+,?){{1,{}}}$", random.size(2, 300))});
    let node = json!({"anyOf": [leaf, {"type": "object", "properties": branches}, {"items": reference("node")}]});
    held(json!({"$ref": "#/$defs/node", "$defs": {"node": node}}))
}

fn many_items(random: &mut Random) -> Value {
    let least = random.size(100, 1_000_000_000);
    let items = match random.between(0, 2) {
        0 => json!({}),
        1 => json!({"enum": [random.word(), random.word()]}),
        _ => {
            json!({"type": "array", "minItems": random.size(2, 5000), "items": {"type": "number"}})
        }
    };
    held(
        json!({"type": "array", "minItems": least, "maxItems": least + random.size(1, 1000), "items": items}),
    )
}

fn long_text(random: &mut Random) -> Value {
    let least = random.size(100, 1_000_000_000);
    held(match random.between(0, 2) {
        0 => json!({"type": "string", "minLength": least}),
        1 => json!({"type": "string", "maxLength": least}),
        _ => {
            json!({"type": "string", "minLength": least, "maxLength": least + random.size(1, 100_000)})
        }
    })
}

fn patterns(random: &mut Random) -> Value {
    let (inner, middle, outer) = (
        random.size(2, 900),
        random.size(2, 900),
        random.size(2, 900),
    );
    let set = random.one(&["[a-z]", "(a|b|ab)", "[^\"]", "\\w", "(.|\\d)"]);
    let pattern = format!("^(({set}{{1,{inner}}}x?){{1,{middle}}}y?){{1,{outer}}}$");
    held(json!({"type": "string", "pattern": pattern}))
}

fn pattern_properties(random: &mut Random) -> Value {
    let count = random.size(2, 300);
    let patterns: Map<String, Value> = (0..count)
        .map(|_| {
            let pattern = match random.between(0, 2) {
                0 => format!("^{}", random.word()),
                1 => format!("{}$", random.word()),
                _ => format!("^.*{}.{{{}}}", random.word(), random.size(1, 60)),
            };
            (pattern, json!({"type": "string"}))
        })
        .collect();
    held(
        json!({"type": "object", "patternProperties": patterns, "additionalProperties": {"type": "integer"}}),
    )
}

fn named(random: &mut Random, count: usize) -> Map<String, Value> {
    let one = |it| {
        let schema = match random.between(0, 3) {
            0 => json!({"type": "string", "maxLength": random.size(1, 3000)}),
            1 => json!({"type": "array", "items": {"type": "integer"}}),
            2 => json!({"enum": [random.word(), random.word(), it]}),
            _ => json!({}),
        };
        (format!("{}{it}", random.word()), schema)
    };
    (0..count).map(one).collect()
}

fn optional_names(random: &mut Random) -> Value {
    let count = random.size(50, 4000);
    held(json!({"type": "object", "properties": named(random, count)}))
}

fn required_names(random: &mut Random) -> Value {
    let count = random.size(50, 4000);
    let properties = named(random, count);
    let required: Vec<&String> = properties.keys().collect();
    held(json!({"type": "object", "required": required, "properties": properties}))
}

fn formats(random: &mut Random) -> Value {
    const FORMATS: [&str; 12] = [
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv6",
        "uuid",
        "uri",
        "uri-template",
        "iri",
        "idn-email",
        "json-pointer",
        "relative-json-pointer",
    ];
    let count = random.size(2, 200);
    let one = |random: &mut Random| {
        let format = random.one(&FORMATS);
        json!({"type": "string", "format": format, "maxLength": random.size(50, 5000)})
    };
    let all: Vec<Value> = (0..count).map(|_| one(random)).collect();
    held(match random.between(0, 1) {
        0 => json!({"anyOf": all}),
        _ => json!({"type": "array", "prefixItems": all, "minItems": count}),
    })
}

fn numbers(random: &mut Random) -> Value {
    let count = random.size(2, 500);
    let one = |random: &mut Random| {
        let least = random.between(0, 1 << 50);
        json!({
            "type": random.one(&["number", "integer"]), "minimum": least,
            "maximum": least + random.size(1, 1 << 40), "multipleOf": random.size(1, 65_535),
        })
    };
    let all: Vec<Value> = (0..count).map(|_| one(random)).collect();
    held(json!({"anyOf": all}))
}

fn constant(random: &mut Random) -> Value {
    let mut value = json!(random.word());
    for _ in 0..random.size(2, 60) {
        value = match random.between(0, 1) {
            0 => json!([value, random.word()]),
            _ => json!({random.word(): value}),
        };
    }
    let long = random.word().repeat(random.size(2, 10_000));
    held(json!({"const": [value, long]}))
}
