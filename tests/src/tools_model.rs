//! The real model with a chat template that knows tools, in a file of its own. It has not learnt to call; what it
//! writes is held by grammars.

use crate::gguf_patch::with_chat_template;
use crate::model::real_model;
use std::path::PathBuf;
use tempfile::TempDir;

/// Calls are written as Hermes does.
pub const WITH_TOOLS: &str = "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}\nCall with <tool_call>.\
                          <|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n\
                          {{ message.content or '' }}{% for call in message.tool_calls %}<tool_call>\
                          {{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
                          <|im_start|>assistant\n";

/// The file is there as long as its folder.
///
/// # Panics
/// When the real model is not there.
#[must_use]
pub fn with_tools() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tools.gguf");
    with_chat_template(&real_model(), WITH_TOOLS, &path).expect("the model is there");
    (dir, path)
}
