//! Messages to one prompt, by the Jinja template that the model brings.
//!
//! Templates are written for Python's Jinja with `trim_blocks` and `lstrip_blocks`, so Python's
//! string and dictionary methods work here, `tojson` is Python's, and `raise_exception` and
//! `strftime_now` exist. The template comes from the model file and is not trusted: it can reach
//! nothing outside its arguments, its steps are counted and its prompt is bounded. What it can
//! still do is overflow the stack, fill memory and take long, so all of it is interpreted in
//! [a process that may die of it](crate::interpreter), never in the supervisor.

use super::conversation::{Conversation, asks_for_thinking, value_of, value_of_json};
use super::python_json::tojson;
use super::python_number;
use crate::calendar::strftime_now;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use thiserror::Error as ThisError;
use worker_orcd_ipc::{TokenId, TokenizerFacts};

/// About a second of interpretation; a long conversation takes a thousandth of it.
const FUEL: u64 = 5_000_000;

const NAME: &str = "chat";

/// Length of what a template may say of its refusals and mistakes, which reach clients and the log.
const MAX_SAID_CHARS: usize = 1000;

/// Facts of a model file about chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateSource {
    pub jinja: String,
    /// Texts of the tokens that begin and end a sequence.
    pub begin: String,
    pub end: String,
}

/// Names that every template is given. A client sets none of these.
pub const OWN_NAMES: &[&str] = &[
    "messages",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "tools",
    "documents",
];

/// A value that a client may set for a template beside the messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateSetting {
    Flag(bool),
    Number(i64),
    Word(String),
}

/// A conversation that is to become a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendering {
    pub conversation: Conversation,
    /// None of them is among [`OWN_NAMES`].
    pub settings: Vec<(String, TemplateSetting)>,
    /// A longer prompt fits no context, and is not written to its end.
    pub max_bytes: usize,
}

/// Why messages cannot become a prompt. None of it holds message text, except what a template
/// itself chooses to say.
#[derive(Debug, Clone, PartialEq, Eq, ThisError, Serialize, Deserialize)]
pub enum TemplateError {
    #[error("the model has no chat template; send a prompt instead of messages")]
    Missing,
    #[error(
        "the model's chat template cannot be compiled ({0}); send a prompt instead of messages"
    )]
    Broken(String),
    /// The template called `raise_exception`: these messages are not what it expects.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    #[error("the model's chat template failed on these messages: {0}")]
    Failed(String),
    #[error("the model's chat template makes more than {0} bytes of these messages")]
    TooLong(usize),
    /// A failure of the machine, not of the template or the messages.
    #[error("the model's chat template cannot be interpreted now: {0}")]
    Unavailable(String),
}

#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    begin: String,
    end: String,
    asks_for_thinking: bool,
}

impl TemplateSource {
    /// # Errors
    /// When the model brings none.
    pub fn from_facts(facts: &TokenizerFacts) -> Result<Self, TemplateError> {
        let text = |token: Option<TokenId>| {
            token
                .and_then(|token| facts.tokens.get(token.index()).cloned())
                .unwrap_or_default()
        };
        Ok(Self {
            jinja: facts.chat_template.clone().ok_or(TemplateError::Missing)?,
            begin: text(facts.bos),
            end: text(facts.eos),
        })
    }
}

impl ChatTemplate {
    /// # Errors
    /// When it is not Jinja.
    pub fn compile(source: TemplateSource) -> Result<Self, TemplateError> {
        let mut environment = environment();
        let asks_for_thinking = asks_for_thinking(&source.jinja);
        environment
            .add_template_owned(NAME, source.jinja)
            .map_err(|error| TemplateError::Broken(describe(&error)))?;
        Ok(Self {
            environment,
            begin: source.begin,
            end: source.end,
            asks_for_thinking,
        })
    }

    /// The prompt that asks for the next turn of the assistant.
    ///
    /// # Errors
    /// When the template refuses the messages, fails on them, takes too many steps, or makes too
    /// much of them.
    pub fn render(&self, rendering: &Rendering) -> Result<String, TemplateError> {
        let rendered = self.render_as_it_is(rendering);
        let Err(TemplateError::Failed(_)) = rendered else {
            return rendered;
        };
        // Many templates take any content for a text, and clients say null beside calls; gpt-oss's does so of
        // descriptions.
        match rendering.conversation.with_missing_texts() {
            Some(conversation) => self.render_as_it_is(&Rendering {
                conversation,
                ..rendering.clone()
            }),
            None => rendered,
        }
    }

    fn render_as_it_is(&self, rendering: &Rendering) -> Result<String, TemplateError> {
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| TemplateError::Broken(describe(&error)))?;
        let Conversation { messages, tools } = &rendering.conversation;
        let messages = messages.iter();
        let messages = messages.map(|it| value_of(it, self.asks_for_thinking));
        let values = context! {
            messages => messages.collect::<Result<Vec<Value>, _>>()?,
            add_generation_prompt => true,
            bos_token => &self.begin,
            eos_token => &self.end,
            tools => tools.as_deref().map(value_of_json).transpose()?,
            documents => (),
            ..rendering.settings.iter().map(setting_of).collect::<BTreeMap<_, _>>()
        };
        let mut prompt = Bounded::new(rendering.max_bytes);
        match template.render_captured_to(values, &mut prompt) {
            Err(_) if prompt.overflowed => Err(TemplateError::TooLong(rendering.max_bytes)),
            Err(error) => Err(refusal(&error)),
            Ok(_) => String::from_utf8(prompt.bytes)
                .map_err(|error| TemplateError::Failed(error.to_string())),
        }
    }
}

/// A prompt that grows no further than it may.
#[derive(Debug)]
struct Bounded {
    bytes: Vec<u8>,
    max: usize,
    overflowed: bool,
}

impl Bounded {
    fn new(max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            max,
            overflowed: false,
        }
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max - self.bytes.len() {
            self.overflowed = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn setting_of((name, setting): &(String, TemplateSetting)) -> (String, Value) {
    let value = match setting {
        TemplateSetting::Flag(flag) => Value::from(*flag),
        TemplateSetting::Number(number) => Value::from(*number),
        TemplateSetting::Word(word) => Value::from(word.as_str()),
    };
    (name.clone(), value)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Only names that end in .html are escaped, and NAME does not; nothing else is loaded.
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .unwrap_or_default(),
    );
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(python_number::print);
    environment.add_filter("string", python_number::string);
    environment.add_filter("tojson", tojson);
    // To Python nothing is no list, and templates ask of tools.
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| {
        strftime_now(format).map_err(|why| Error::new(ErrorKind::InvalidOperation, why))
    });
    environment
}

/// Marks an error as the template's own refusal.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn refusal(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Refused(presentable(message));
        }
        cause = current.source();
    }
    TemplateError::Failed(describe(error))
}

/// Kind, detail and line, and no source text.
fn describe(error: &Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text.push_str(": ");
        text.push_str(detail);
    }
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line})"));
    }
    presentable(&text)
}

/// A stranger's text, short and without what could steer a terminal.
fn presentable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(MAX_SAID_CHARS).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{ChatMessage, ToolCall};

    fn compile(template: &str) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::compile(TemplateSource {
            jinja: template.to_owned(),
            begin: "<s>".to_owned(),
            end: "</s>".to_owned(),
        })
    }

    fn render_within(max_bytes: usize, template: &str) -> Result<String, TemplateError> {
        let message = |role: &str, content: &str, name: Option<&str>| ChatMessage {
            role: role.to_owned(),
            content: Some(content.to_owned()),
            name: name.map(str::to_owned),
            ..ChatMessage::default()
        };
        let messages = vec![
            message("system", " Be <brief>. ", None),
            message("user", "\"Hi\"\n", Some("Ann")),
        ];
        compile(template)?.render(&Rendering {
            conversation: Conversation {
                messages,
                tools: None,
            },
            settings: vec![("enable_thinking".to_owned(), TemplateSetting::Flag(false))],
            max_bytes,
        })
    }

    fn render(template: &str) -> Result<String, TemplateError> {
        render_within(1 << 20, template)
    }

    #[test]
    fn what_a_client_sets_is_there_and_nothing_of_the_template_s_own_is_lost() {
        let template = "{% if enable_thinking is defined and enable_thinking is false %}off\
                        {% endif %}{{ messages | length }}{{ add_generation_prompt }}{{ other }}";
        assert_eq!(render(template).unwrap(), "off2True");
    }

    #[test]
    fn chatml_as_models_bring_it() {
        let template = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' \
                        + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\
                        {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        assert_eq!(
            render(template).unwrap(),
            "<|im_start|>system\n Be <brief>. <|im_end|>\n<|im_start|>user\n\"Hi\"\n<|im_end|>\n\
             <|im_start|>assistant\n"
        );
    }

    #[test]
    fn python_s_methods_and_begin_and_end_tokens_work() {
        let template = "{{ bos_token }}{% set ns = namespace(n=0) %}\n\
                        {% for m in messages %}\n{% set ns.n = ns.n + 1 %}\n\
                        {{ m.content.strip().upper() }}{{ m.get('name', '-') }}\n\
                        {% endfor %}\n{{ ns.n }}{{ messages[-1].role }}{{ eos_token }}";
        assert_eq!(
            render(template).unwrap(),
            "<s>BE <BRIEF>.-\n\"HI\"Ann\n2user</s>"
        );
    }

    #[test]
    fn json_is_python_s() {
        assert_eq!(
            render("{{ messages | tojson }}").unwrap(),
            "[{\"role\": \"system\", \"content\": \" Be <brief>. \"}, \
             {\"role\": \"user\", \"content\": \"\\\"Hi\\\"\\n\", \"name\": \"Ann\"}]"
        );
        assert_eq!(
            render("{{ {'a': [1, 2.5, true, none]} | tojson(indent=2) }}").unwrap(),
            "{\n  \"a\": [\n    1,\n    2.5,\n    true,\n    null\n  ]\n}"
        );
    }

    #[test]
    fn arguments_and_tools_are_values_in_the_order_in_which_they_were_written() {
        let call = ToolCall {
            id: Some("c1".to_owned()),
            name: "add".to_owned(),
            arguments: "{\"b\":1.0,\"a\":{\"é\":[]}}".to_owned(),
        };
        let message = |tool_calls, tool_call_id: Option<&str>| ChatMessage {
            role: "assistant".to_owned(),
            tool_calls,
            tool_call_id: tool_call_id.map(str::to_owned),
            reasoning: tool_call_id.map(|_| "Hm".to_owned()),
            ..ChatMessage::default()
        };
        let conversation = Conversation {
            messages: vec![message(vec![call], None), message(vec![], Some("c1"))],
            tools: Some("[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]".to_owned()),
        };
        let template = "{{ tools[0].function.name }} {{ messages | tojson }} {{ \
                        messages[0].tool_calls[0].function.arguments.b }}";
        let rendering = Rendering {
            conversation,
            settings: vec![],
            max_bytes: 1 << 20,
        };
        assert_eq!(
            compile(template).unwrap().render(&rendering).unwrap(),
            "add [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c1\", \
             \"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {\"b\": 1.0, \
             \"a\": {\"é\": []}}}}]}, {\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \
             \"Hm\", \"tool_call_id\": \"c1\"}] 1.0"
        );
    }

    #[test]
    fn numbers_are_python_s_however_they_are_written() {
        let tools = "[1,1.0,0.00001,1e22,-0,18446744073709551615,-2.50]";
        let tools = crate::text::json_texts::map(tools, &mut str::to_owned);
        let conversation = Conversation {
            messages: vec![],
            tools,
        };
        let rendering = Rendering {
            conversation,
            settings: vec![],
            max_bytes: 1 << 20,
        };
        let template = "{{ tools | tojson }} {{ tools[2] }} {{ tools[3] | string }} {{ tools[0] }}";
        assert_eq!(
            compile(template).unwrap().render(&rendering).unwrap(),
            "[1, 1.0, 1e-05, 1e+22, 0, 18446744073709551615, -2.5] 1e-05 1e+22 1"
        );
    }

    fn render_silent(template: &str) -> Result<String, TemplateError> {
        let conversation = Conversation {
            messages: vec![ChatMessage::default()],
            tools: None,
        };
        compile(template)?.render(&Rendering {
            conversation,
            settings: vec![],
            max_bytes: 1 << 20,
        })
    }

    #[test]
    fn a_message_without_content_is_none_or_an_empty_text_where_that_fails() {
        let none = "{% if messages[0].content is none %}none{% endif %}";
        assert_eq!(render_silent(none).unwrap(), "none");
        for text in [
            "<{{ messages[0]['content'] + '>' }}",
            "<{{ messages[0].content.strip() }}>",
            "<{% if 'a' not in messages[0].content %}>{% endif %}",
        ] {
            assert_eq!(render_silent(text).unwrap(), "<>", "{text}");
        }
        let refuses = "{% if messages[0].content is none %}{{ raise_exception('no') }}{% endif %}";
        assert!(matches!(
            render_silent(refuses),
            Err(TemplateError::Refused(_))
        ));
        let fails = "{{ messages[0].content.no_such() }}";
        assert!(matches!(
            render_silent(fails),
            Err(TemplateError::Failed(_))
        ));
    }

    #[test]
    fn a_function_without_a_description_has_an_empty_one_where_that_fails() {
        let tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"b\":1.0,\"a\":1e22}}}]";
        let rendering = Rendering {
            conversation: Conversation {
                messages: vec![],
                tools: Some(tools.to_owned()),
            },
            settings: vec![],
            max_bytes: 1 << 20,
        };
        let render = |template: &str| compile(template).unwrap().render(&rendering).unwrap();
        let text = "// {{ tools[0].function.description + '.' }} {{ tools[0].function.parameters | tojson }}";
        assert_eq!(render(text), "// . {\"b\": 1.0, \"a\": 1e+22}");
        assert_eq!(
            render("{{ tools[0].function.description is defined }}"),
            "False"
        );
    }

    #[test]
    fn ascii_is_there_for_those_who_want_it() {
        let template =
            "{{ 'é😀' | tojson(ensure_ascii=true) }}{{ 'é' | tojson(ensure_ascii=false) }}";
        assert_eq!(render(template).unwrap(), "\"\\u00e9\\ud83d\\ude00\"\"é\"");
    }

    #[test]
    fn none_is_nothing_to_go_through() {
        let template = "{% for it in [tools, messages, 'ab', {'a': 1}, missing, 5] %}\
                        {{ '1' if it is iterable else '0' }}{% endfor %}";
        assert_eq!(render(template).unwrap(), "011110");
    }

    #[test]
    fn a_refusal_is_told_apart_from_a_failure() {
        assert_eq!(
            render("{{ raise_exception('roles must alternate') }}"),
            Err(TemplateError::Refused("roles must alternate".to_owned()))
        );
        assert!(matches!(
            render("{{ missing.field }}"),
            Err(TemplateError::Failed(_))
        ));
        assert!(matches!(render("{% if %}"), Err(TemplateError::Broken(_))));
    }

    #[test]
    fn what_a_template_says_of_itself_is_short_and_harmless() {
        let refused = render("{{ raise_exception('\u{1b}[2J' ~ 'x' * 100000) }}").unwrap_err();
        let TemplateError::Refused(said) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(said.len(), MAX_SAID_CHARS);
        assert!(said.starts_with(" [2Jxx"), "{said}");
    }

    #[test]
    fn a_template_that_never_ends_is_ended() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}\
                       {% endfor %}{% endfor %}";
        assert!(matches!(render(endless), Err(TemplateError::Failed(_))));
    }

    #[test]
    fn a_prompt_is_written_up_to_its_bound() {
        let ten = "{% for a in range(5) %}ab{% endfor %}";
        assert_eq!(render_within(10, ten).unwrap(), "ababababab");
        assert_eq!(render_within(9, ten), Err(TemplateError::TooLong(9)));
    }
}
