//! Tool call formats of the model families.
//!
//! | syntax | text of the model | models |
//! |---|---|---|
//! | `hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` | NousResearch's Hermes, Qwen 2.5 and 3 |
//! | `llama3` | `{"name": …, "parameters": {…}}`, after `<|python_tag|>` or as the whole answer; several separated by `;` | Meta's Llama 3.1 to 3.3 |
//! | `mistral` | `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` | Mistral |
//! | `harmony` | messages to `functions.NAME`, parsed by `harmony` | OpenAI's gpt-oss |
//! | `gemma4` | `<|tool_call>call:NAME{key:<|"|>text<|"|>,count:2}<tool_call|>`, parsed by `dict` | Google's Gemma 4 |
//! | `qwen3_coder` | `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`, parsed by `function` | Qwen3-Coder, Qwen 3.5 to 3.8 |
//! | `phi` | `functools[{"name": …, "arguments": {…}}, …]`, or the list between `<|tool_call|>` and `<|/tool_call|>` | Microsoft's Phi-4-mini |

use super::{MAX_SCHEMA_BYTES, dict, function, harmony};
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
    /// Under vLLM's name.
    #[strum(serialize = "qwen3_coder")]
    Qwen3Coder,
    Gemma4,
}

/// Format of a call between the marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A JSON object with the name and the arguments.
    Json,
    /// Tags of functions and parameters.
    Tags,
    /// A name and a dictionary with marks around strings.
    Dict,
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
    pub(super) format: Format,
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
    format: Format::Json,
    is_bare: false,
    separator: None,
    inner: &[],
};

const LLAMA3: Marks = Marks {
    openers: &["<|python_tag|>"],
    closers: &[],
    has_lists: false,
    has_names: false,
    format: Format::Json,
    is_bare: true,
    separator: Some(';'),
    inner: &[],
};

const MISTRAL: Marks = Marks {
    openers: &["[TOOL_CALLS]"],
    closers: &[],
    has_lists: true,
    has_names: true,
    format: Format::Json,
    is_bare: false,
    separator: None,
    inner: &["[ARGS]", "[CALL_ID]"],
};

const PHI: Marks = Marks {
    openers: &["<|tool_call|>", "functools"],
    closers: &["<|/tool_call|>"],
    has_lists: true,
    has_names: false,
    format: Format::Json,
    is_bare: false,
    separator: None,
    inner: &[],
};

const QWEN3_CODER: Marks = Marks {
    // Some models omit the first.
    openers: &["<tool_call>", function::FUNCTION],
    closers: &["</tool_call>"],
    has_lists: false,
    has_names: false,
    format: Format::Tags,
    is_bare: false,
    separator: None,
    inner: &[],
};

const GEMMA4: Marks = Marks {
    openers: &["<|tool_call>"],
    closers: &["<tool_call|>"],
    has_lists: false,
    has_names: false,
    format: Format::Dict,
    is_bare: false,
    separator: None,
    inner: &[dict::QUOTE],
};

/// Harmony delimits calls by messages only, so it has no marks here.
const HARMONY: Marks = Marks {
    openers: &[],
    closers: &[],
    has_lists: false,
    has_names: false,
    format: Format::Json,
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
            Self::Qwen3Coder => &QWEN3_CODER,
            Self::Gemma4 => &GEMMA4,
        }
    }

    /// Format that a chat template teaches, found by text search: the template is not interpreted here.
    #[must_use]
    pub fn of_template(jinja: &str) -> Option<Self> {
        let says = |text: &str| jinja.contains(text);
        // These write calls without JSON, between the same tags as Hermes.
        if says("<function=") || says("<arg_key>") {
            let is_qwen3_coder = ["<tool_call>", "<function=", "<parameter="]
                .into_iter()
                .all(says);
            return is_qwen3_coder.then_some(Self::Qwen3Coder);
        }
        // Other templates contain `"parameters":` in schemas, but not these headers.
        let writes_parameters = says("\"parameters\":") && says("<|start_header_id|>");
        let known = [
            (Self::Harmony, harmony::is_taught_by(jinja)),
            (Self::Mistral, says("[TOOL_CALLS]")),
            (Self::Gemma4, says("<|tool_call>call:")),
            (Self::Hermes, says("<tool_call>")),
            (Self::Phi, says("functools[") || says("<|tool_call|>")),
            (Self::Llama3, says("<|python_tag|>") || writes_parameters),
        ];
        known
            .into_iter()
            .find_map(|(syntax, is_taught)| is_taught.then_some(syntax))
    }

    /// Rule that the name of a function breaks, if calls cannot express it.
    #[must_use]
    pub fn objection_to_name(self, name: &str) -> Option<&'static str> {
        let (is_of_name, rule): (fn(char) -> bool, _) = match self.marks().format {
            Format::Json => return None,
            Format::Tags => (
                function::is_of_name,
                "must have no <, > or line end, because this model's calls have no escapes",
            ),
            Format::Dict => (
                dict::is_of_name,
                "must have no {, }, <, >, : or white space, because this model's calls have no escapes",
            ),
        };
        (!name.chars().all(is_of_name)).then_some(rule)
    }

    /// Rule that the schema of a function breaks, if the types of its parameters are not read from it.
    #[must_use]
    pub fn objection_to_schema(self, schema: &str) -> Option<String> {
        let is_unread = self.marks().format == Format::Tags && schema.len() > MAX_SCHEMA_BYTES;
        is_unread.then(|| format!("must have at most {MAX_SCHEMA_BYTES} bytes for this model"))
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
                "{{- '<|tool_call>call:' + function['name'] + '{' -}}",
                Some(Syntax::Gemma4),
            ),
            (
                "'<|start|>assistant<|channel|>final<|message|>' <tool_call>",
                Some(Syntax::Harmony),
            ),
            ("<|START_ACTION_TOKEN|>\"parameters\":", None),
            (
                "<tool_call>\n<function=name>\n<parameter=a>",
                Some(Syntax::Qwen3Coder),
            ),
            ("<function=name>{\"a\": 1}</function>", None),
            ("<seed:tool_call><function=name><parameter=a>", None),
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
