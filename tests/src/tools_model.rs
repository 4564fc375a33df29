//! Copy of the real model with a chat template for tools. The model is not trained for calls; grammars constrain its
//! output.

use crate::gguf_patch::with_chat_template;
use crate::model::real_model;
use std::path::PathBuf;
use tempfile::TempDir;

/// Template with Hermes's markup of calls.
pub const WITH_TOOLS: &str = "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}\nCall with <tool_call>.\
                          <|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n\
                          {{ message.content or '' }}{% for call in message.tool_calls %}<tool_call>\
                          {{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
                          <|im_start|>assistant\n";

/// Writes the file, which lives as long as its folder.
///
/// # Panics
/// The real model does not exist.
#[must_use]
pub fn with_tools() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tools.gguf");
    with_chat_template(&real_model(), WITH_TOOLS, &path).expect("the model is there");
    (dir, path)
}
