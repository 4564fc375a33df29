//! Tag `{% generation %}…{% endgeneration %}`. Templates for Hugging Face's transformers mark the assistant's text with
//! it, for training. SmolLM3's template has it.
//!
//! The template engine does not support the tag. The tag does not change a prompt, and variables set inside it are not
//! visible after it. Both hold for `with`, which replaces it.

/// Template with each such tag replaced by `with`. A text of the same form inside quotes is replaced too.
pub(super) fn replaced(jinja: &str) -> String {
    let mut parts = jinja.split("{%");
    let mut out = String::with_capacity(jinja.len());
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        out.push_str("{%");
        let word = part.trim_start_matches(['-', '+']).trim_start();
        let behind = [("generation", "with"), ("endgeneration", "endwith")];
        let behind = behind.iter().find_map(|(tag, block)| {
            let behind = word.strip_prefix(tag)?;
            let end = behind.trim_start().trim_start_matches(['-', '+']);
            end.starts_with("%}").then_some((block, behind))
        });
        match behind {
            Some((block, behind)) => {
                out.push_str(&part[..part.len() - word.len()]);
                out.push_str(block);
                out.push_str(behind);
            }
            None => out.push_str(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_blocks_with_the_same_space_around_them_and_nothing_else_changes() {
        for (jinja, same) in [
            (
                "{% generation %}a{% endgeneration %}",
                "{% with %}a{% endwith %}",
            ),
            (
                "{%- generation -%}\na{%-\nendgeneration+%}",
                "{%- with -%}\na{%-\nendwith+%}",
            ),
            ("é{%generation%}{%", "é{%with%}{%"),
        ] {
            assert_eq!(replaced(jinja), same);
        }
        for other in [
            "",
            "{% generation = 1 %}",
            "{% set generation = 1 %}{{ generation }}",
            "{% if add_generation_prompt %}{% endif %}",
            "{% generations %}",
            "generation %} {# endgeneration #}",
        ] {
            assert_eq!(replaced(other), other);
        }
    }
}
