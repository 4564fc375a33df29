//! Check of the `template` fuzz target. The tests that replay its seeds run it too.

use worker_orcd_ipc::{TokenId, TokenKind, TokenizerFacts, TokenizerKind};
use worker_orcd_text::template::ChatTemplate;
use worker_orcd_text::{ChatMessage, Conversation, Rendering, TemplateError, TemplateSource, Text};

/// Longer templates may overflow the stack; production interprets them in a process of its own.
const MAX_TEMPLATE_BYTES: usize = 2 << 10;
const MAX_PROMPT_BYTES: usize = 64 << 10;

/// Templates as models contain them: plain, with access to parts of messages, and with everything as JSON.
const TEMPLATES: &[&str] = &[
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "{% for m in messages %}<|im_start|>{% if '</think>' in m.content %}\
     {{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content | trim }}{% endif %}\
     <|im_end|>{% endfor %}",
    "<|im_start|>{{ messages | tojson }}{{ messages[0]['content'][:9] }}<|im_end|>",
];

/// Reads a seed. The first byte selects a template of `TEMPLATES`, which renders the rest, split at zeros, as messages;
/// higher values make the rest a template. True when it compiled, or when the origin of every control token was found.
pub fn check(data: &[u8]) -> bool {
    let Some((which, rest)) = data.split_first() else {
        return false;
    };
    let rest = String::from_utf8_lossy(rest);
    match TEMPLATES.get(usize::from(*which)) {
        Some(template) => control_tokens_are_the_template_s(template, &rest),
        None => compiles_or_says_why(&rest),
    }
}

fn compiles_or_says_why(template: &str) -> bool {
    if template.len() > MAX_TEMPLATE_BYTES {
        return false;
    }
    match compile(template) {
        Ok(_) => true,
        Err(error) => {
            let said = error.to_string();
            assert!(matches!(error, TemplateError::Broken(_)), "{said}");
            assert!(
                said.chars().count() < 1200 && !said.contains(char::is_control),
                "{said:?}"
            );
            false
        }
    }
}

fn control_tokens_are_the_template_s(template: &str, contents: &str) -> bool {
    let conversation = Conversation {
        messages: contents.split('\0').map(message).collect(),
        tools: None,
    };
    let template = compile(template).expect("one of ours");
    let text = Text::from_facts(&facts()).expect("facts of ours");
    let Ok(prompt) = render(&template, conversation.clone()) else {
        return false;
    };
    let own = match text.tokenizer().mark(&conversation) {
        None => Vec::new(),
        Some(mut marked) => {
            let Ok(again) = render(&template, std::mem::take(&mut marked.conversation)) else {
                return false;
            };
            match text.tokenizer().clients_own(&prompt, &marked, &again) {
                Some(own) => own,
                None => return false,
            }
        }
    };
    let control = |ids: Vec<TokenId>| ids.iter().filter(|id| id.0 < 4).count();
    let kept = control(text.encode_rendered(&prompt, &own).expect("short"));
    let parsed = control(text.encode_rendered(&prompt, &[]).expect("short"));
    let clients = own.iter().filter(|own| **own).count();
    assert_eq!(kept + clients, parsed, "{prompt:?}");
    true
}

fn message(content: &str) -> ChatMessage {
    ChatMessage {
        role: "user".to_owned(),
        content: Some(content.to_owned()),
        ..ChatMessage::default()
    }
}

fn compile(template: &str) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::compile(TemplateSource {
        jinja: template.to_owned(),
        begin: String::new(),
        end: String::new(),
    })
}

fn render(template: &ChatTemplate, conversation: Conversation) -> Result<String, TemplateError> {
    template.render(&Rendering {
        conversation,
        settings: vec![],
        max_bytes: MAX_PROMPT_BYTES,
    })
}

/// Vocabulary of four tokens without text and one token for each byte.
fn facts() -> TokenizerFacts {
    let mut tokens = ["<unk>", "<|im_start|>", "<|im_end|>", "</think>"]
        .map(str::to_owned)
        .to_vec();
    let mut kinds = vec![TokenKind::Unknown];
    kinds.extend([TokenKind::Control; 3]);
    tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
    kinds.extend([TokenKind::Byte; 256]);
    TokenizerFacts {
        kind: TokenizerKind::SentencePiece,
        pre: String::new(),
        scores: vec![0.0; tokens.len()],
        tokens,
        kinds,
        merges: Vec::new(),
        bos: None,
        eos: Some(TokenId(2)),
        end_of_generation: vec![TokenId(2)],
        unknown: Some(TokenId(0)),
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: None,
    }
}
