//! `{% generation %}…{% endgeneration %}`, by which templates for Hugging Face's transformers mark what an assistant said,
//! for those who train on it. SmolLM3's has it.
//!
//! The template engine does not know the tag. Of a prompt it changes nothing, and what is set within it is not known behind
//! it, which is what `with` does.

/// The same template with `with` in the place of each such tag. A text that only looks like one is taken for it, too, within
/// quotes as well.
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
