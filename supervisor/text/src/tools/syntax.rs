//! Tool call formats of the model families.
//!
//! | syntax | text of the model | models |
//! |---|---|---|
//! | `hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` | NousResearch's Hermes, Qwen 2.5 and 3 |
//! | `llama3` | `{"name": …, "parameters": {…}}`, after `<|python_tag|>` or as the whole answer; several separated by `;` | Meta's Llama 3.1 to 3.3 |
//! | `mistral` | `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` | Mistral |
//! | `harmony` | messages to `functions.NAME`, parsed by `harmony` | OpenAI's gpt-oss |
//! | `phi` | `functools[{"name": …, "arguments": {…}}, …]`, or the list between `<|tool_call|>` and `<|/tool_call|>` | Microsoft's Phi-4-mini |

use super::harmony;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum Syntax {
    Hermes,
    Llama3,
    Mistral,
    Phi,
    Harmony,
}

/// Marks around the calls of one syntax.
#[derive(Debug)]
pub(super) struct Marks {
    /// Texts that begin calls.
    pub(super) openers: &'static [&'static str],
    /// Texts that end calls. Empty if the model writes none.
    pub(super) closers: &'static [&'static str],
    /// Calls may form a JSON list.
    pub(super) has_lists: bool,
    /// A call may be a name followed by its arguments.
    pub(super) has_names: bool,
    /// A call may be the whole answer, without an opener.
    pub(super) is_bare: bool,
    /// Separator of two calls outside a list.
    pub(super) separator: Option<char>,
    /// Further texts that occur only in calls.
    inner: &'static [&'static str],
}

const HERMES: Marks = Marks {
    openers: &["<tool_call>"],
    closers: &["</tool_call>"],
    has_lists: false,
    has_names: false,
    is_bare: false,
    separator: None,
    inner: &[],
};

const LLAMA3: Marks = Marks {
    openers: &["<|python_tag|>"],
    closers: &[],
    has_lists: false,
    has_names: false,
    is_bare: true,
    separator: Some(';'),
    inner: &[],
};

const MISTRAL: Marks = Marks {
    openers: &["[TOOL_CALLS]"],
    closers: &[],
    has_lists: true,
    has_names: true,
    is_bare: false,
    separator: None,
    inner: &["[ARGS]", "[CALL_ID]"],
};

const PHI: Marks = Marks {
    openers: &["<|tool_call|>", "functools"],
    closers: &["<|/tool_call|>"],
    has_lists: true,
    has_names: false,
    is_bare: false,
    separator: None,
    inner: &[],
};

/// Harmony delimits calls by messages only, so it has no marks here.
const HARMONY: Marks = Marks {
    openers: &[],
    closers: &[],
    has_lists: false,
    has_names: false,
    is_bare: false,
    separator: None,
    inner: &[],
};

impl Syntax {
    pub(super) fn marks(self) -> &'static Marks {
        match self {
            Self::Hermes => &HERMES,
            Self::Llama3 => &LLAMA3,
            Self::Mistral => &MISTRAL,
            Self::Phi => &PHI,
            Self::Harmony => &HARMONY,
        }
    }

    /// Format that a chat template teaches, found by text search: the template is not interpreted here.
    #[must_use]
    pub fn of_template(jinja: &str) -> Option<Self> {
        let says = |text: &str| jinja.contains(text);
        // Qwen3-Coder and GLM write calls without JSON, between the same tags as Hermes.
        if says("<function=") || says("<arg_key>") {
            return None;
        }
        // Other templates contain `"parameters":` in schemas, but not these headers.
        let writes_parameters = says("\"parameters\":") && says("<|start_header_id|>");
        let known = [
            (Self::Harmony, harmony::is_taught_by(jinja)),
            (Self::Mistral, says("[TOOL_CALLS]")),
            (Self::Hermes, says("<tool_call>")),
            (Self::Phi, says("functools[") || says("<|tool_call|>")),
            (Self::Llama3, says("<|python_tag|>") || writes_parameters),
        ];
        known
            .into_iter()
            .find_map(|(syntax, is_taught)| is_taught.then_some(syntax))
    }

    /// Texts that delimit calls. In some vocabularies they are special tokens.
    pub fn texts(self) -> impl Iterator<Item = &'static str> {
        let marks = self.marks();
        [marks.openers, marks.closers, marks.inner]
            .into_iter()
            .flatten()
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_tells_its_family() {
        for (jinja, syntax) in [
            (
                "… within <tool_call></tool_call> XML tags",
                Some(Syntax::Hermes),
            ),
            (
                "{{ '<|python_tag|>' + tool_call.name }}",
                Some(Syntax::Llama3),
            ),
            (
                r#"<|start_header_id|>{{ '{"name": "' + name + '", "parameters": ' }}"#,
                Some(Syntax::Llama3),
            ),
            ("{{ '[TOOL_CALLS] [' }}", Some(Syntax::Mistral)),
            ("{{ '<|tool_call|>' }}", Some(Syntax::Phi)),
            ("functools[…]", Some(Syntax::Phi)),
            (
                "'<|start|>assistant<|channel|>final<|message|>' <tool_call>",
                Some(Syntax::Harmony),
            ),
            ("<|START_ACTION_TOKEN|>\"parameters\":", None),
            ("<tool_call>\n<function=name>\n<parameter=a>", None),
            ("<tool_call>{{ name }}<arg_key> \"parameters\":", None),
            (
                "{% for message in messages %}{{ message.content }}{% endfor %}",
                None,
            ),
        ] {
            assert_eq!(Syntax::of_template(jinja), syntax, "{jinja}");
        }
    }
}
