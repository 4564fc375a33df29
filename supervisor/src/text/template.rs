//! Messages to one prompt, by the Jinja template that the model brings.
//!
//! Templates are written for Python's Jinja with `trim_blocks` and `lstrip_blocks`, so Python's
//! string and dictionary methods work here, `tojson` is Python's, and `raise_exception` and
//! `strftime_now` exist. The template comes from the model file and is not trusted: it is
//! interpreted with a bounded number of steps and can reach nothing outside its arguments. What
//! it could still do is build a large text from few steps; nothing bounds that.

use super::python_json::tojson;
use crate::calendar::strftime_now;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use thiserror::Error as ThisError;
use worker_orcd_ipc::{TokenId, TokenizerFacts};

/// About a second of interpretation; a long conversation takes a thousandth of it.
const FUEL: u64 = 5_000_000;

const NAME: &str = "chat";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    pub role: String,
    pub content: String,
    /// Who speaks, where several play one role.
    pub name: Option<String>,
}

/// Why messages cannot become a prompt. None of it holds message text, except what a template
/// itself chooses to say.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
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
}

#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    begin: String,
    end: String,
}

impl ChatTemplate {
    /// # Errors
    /// When there is no template, or one that is not Jinja.
    pub fn from_facts(facts: &TokenizerFacts) -> Result<Self, TemplateError> {
        let source = facts.chat_template.clone().ok_or(TemplateError::Missing)?;
        let mut environment = environment();
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| TemplateError::Broken(describe(&error)))?;
        let text = |token: Option<TokenId>| {
            token
                .and_then(|token| facts.tokens.get(token.index()).cloned())
                .unwrap_or_default()
        };
        Ok(Self {
            environment,
            begin: text(facts.bos),
            end: text(facts.eos),
        })
    }

    /// The prompt that asks for the next turn of the assistant.
    ///
    /// # Errors
    /// When the template refuses the messages, fails on them, or takes too long.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, TemplateError> {
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| TemplateError::Broken(describe(&error)))?;
        let messages: Vec<Value> = messages.iter().map(value_of).collect();
        template
            .render(context! {
                messages => messages,
                add_generation_prompt => true,
                bos_token => &self.begin,
                eos_token => &self.end,
                tools => (),
                documents => (),
            })
            .map_err(|error| refusal(&error))
    }
}

/// Without a name there is no such key: templates ask whether it is there.
fn value_of(message: &ChatMessage) -> Value {
    let ChatMessage {
        role,
        content,
        name,
    } = message;
    match name {
        Some(name) => context! { role, content, name },
        None => context! { role, content },
    }
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
    environment.add_filter("tojson", tojson);
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
            return TemplateError::Refused(message.clone());
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
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::{TokenKind, TokenizerKind};

    fn facts(template: &str) -> TokenizerFacts {
        TokenizerFacts {
            kind: TokenizerKind::ByteLevelBpe,
            pre: "gpt-2".to_owned(),
            tokens: vec!["<s>".to_owned(), "</s>".to_owned()],
            kinds: vec![TokenKind::Control, TokenKind::Control],
            scores: Vec::new(),
            merges: Vec::new(),
            bos: Some(TokenId(0)),
            eos: Some(TokenId(1)),
            end_of_generation: vec![TokenId(1)],
            unknown: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
            chat_template: Some(template.to_owned()),
        }
    }

    fn render(template: &str) -> Result<String, TemplateError> {
        let messages = [
            ChatMessage {
                role: "system".to_owned(),
                content: " Be <brief>. ".to_owned(),
                name: None,
            },
            ChatMessage {
                role: "user".to_owned(),
                content: "\"Hi\"\n".to_owned(),
                name: Some("Ann".to_owned()),
            },
        ];
        ChatTemplate::from_facts(&facts(template))?.render(&messages)
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
    fn a_template_that_never_ends_is_ended() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}\
                       {% endfor %}{% endfor %}";
        assert!(matches!(render(endless), Err(TemplateError::Failed(_))));
    }
}
