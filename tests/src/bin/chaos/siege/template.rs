//! Working chat template with a bomb for each trigger word.

use worker_orcd_tests::tools_model::WITH_TOOLS;

/// Trigger in a message, and the template's reaction.
const BOMBS: [(&str, &str); 8] = [
    (
        "print a deep list",
        "{% set ns = namespace(l=[]) %}{% for i in range(9000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    ),
    (
        "a deep list as json",
        "{% set ns = namespace(l=[]) %}{% for i in range(20000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}",
    ),
    (
        "drop a deep list",
        "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = [ns.l] %}{% endfor %}",
    ),
    (
        "double a string",
        "{% set ns = namespace(s='xx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}",
    ),
    (
        "replace",
        "{{ ('a'*100000).replace('a', 'b'*100000)|length }}",
    ),
    ("format", "{{ '%9000000000d'|format(1) }}"),
    ("indent", "{{ {'a': [1]}|tojson(indent=1000000000) }}"),
    (
        "concatenate for ever",
        "{% set s = 'x'*4000000 %}{% for i in range(2000) %}{% for j in range(2000) %}{% set t = s ~ i %}{% endfor %}{% endfor %}",
    ),
];

/// Trigger of bomb `index`, modulo their number.
pub fn fuse(index: usize) -> &'static str {
    BOMBS[index % BOMBS.len()].0
}

pub const COUNT: usize = BOMBS.len();

/// ChatML with tools, and the bombs.
pub fn bombs() -> String {
    let mut template = "{% if false %}".to_owned();
    for (fuse, bomb) in BOMBS {
        template.push_str(&format!(
            "{{% elif messages[-1]['content'] == '{fuse}' %}}{bomb}"
        ));
    }
    template.push_str(&format!("{{% else %}}{WITH_TOOLS}{{% endif %}}"));
    template
}
