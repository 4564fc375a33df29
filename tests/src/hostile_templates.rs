//! Chat templates that kill, fill or block the process that interprets them.
//!
//! Each would end or block the supervisor if it ran there.

use std::fmt::Write as _;

#[derive(Debug, Clone)]
pub struct Bomb {
    pub name: &'static str,
    pub template: String,
}

/// Template that overflows, when parsed, any stack of 8 MB.
#[must_use]
pub fn deadly_to_compile() -> Vec<Bomb> {
    // A model file may contain a template of 1 MiB.
    const BYTES: usize = 1_000_000;
    let bomb = |name, before: &str, repeated: &str, after: &str| Bomb {
        name,
        template: [before, &repeated.repeat(BYTES / repeated.len()), after].concat(),
    };
    vec![
        bomb("sum", "{{ 1", "+1", " }}"),
        bomb("not", "{{ ", "not ", "a }}"),
        bomb("attributes", "{{ a", ".a", " }}"),
        bomb("elif", "{% if a %}", "{% elif a %}", "{% endif %}"),
    ]
}

/// Bodies that end the process when they are rendered.
#[must_use]
pub fn deadly_to_render() -> Vec<Bomb> {
    let nest = "{% set ns = namespace(v=[]) %}{% for i in range(99999) %}\
                {% set ns.v = [ns.v] %}{% endfor %}";
    let bomb = |name, template: String| Bomb { name, template };
    vec![
        bomb("nested-print", format!("{nest}{{{{ ns.v }}}}")),
        bomb("nested-json", format!("{nest}{{{{ ns.v | tojson }}}}")),
        bomb("nested-drop", format!("{nest}dropped")),
        bomb(
            "doubling",
            "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}\
             {% set ns.s = ns.s ~ ns.s %}{% endfor %}"
                .to_owned(),
        ),
        bomb(
            "replace",
            "{{ ('a' * 100000).replace('a', 'b' * 100000) }}".to_owned(),
        ),
        bomb("format", "{{ '%9000000000d' | format(1) }}".to_owned()),
        bomb(
            "format-method",
            "{{ '{:>9000000000}'.format(1) }}".to_owned(),
        ),
        bomb("indent", "{{ [1] | tojson(indent=1000000000) }}".to_owned()),
    ]
}

/// Template of few long steps, which no step count detects.
#[must_use]
pub fn endless() -> Bomb {
    Bomb {
        name: "endless",
        template: "{% set s = 'a' * 4000000 %}{% for i in range(9999) %}\
                   {% for j in range(100) %}{% set t = s ~ j %}{% endfor %}{% endfor %}"
            .to_owned(),
    }
}

/// Template with all of them: a last message that names a bomb triggers it, any other gives an ordinary prompt.
#[must_use]
pub fn arsenal(bombs: &[Bomb]) -> String {
    let mut template = String::from("{% set said = messages[-1]['content'] %}{% if false %}");
    for Bomb {
        name,
        template: body,
    } in bombs
    {
        write!(template, "{{% elif said == '{name}' %}}{body}").expect("a string takes all");
    }
    template.push_str(
        "{% else %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n\
         {{ message['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n{% endif %}",
    );
    template
}
