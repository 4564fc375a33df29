// async-openai-structured
use async_openai::Client;
use async_openai::types::chat::{
    ChatCompletionRequestUserMessage, CreateChatCompletionRequestArgs, ResponseFormat,
    ResponseFormatJsonSchema,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::error::Error;

#[derive(Deserialize, Serialize)]
struct River {
    name: String,
    kind: String,
    km: u16,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    let json_schema = ResponseFormatJsonSchema {
        name: "river".into(),
        description: None,
        strict: Some(true),
        schema: json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "kind": {"enum": ["river", "stream"]},
                "km": {"type": "integer", "minimum": 1, "maximum": 9999},
            },
            "required": ["name", "kind", "km"],
            "additionalProperties": false,
        }),
    };
    let question = "Describe a river as JSON with its name, kind and length in km.";
    let request = CreateChatCompletionRequestArgs::default()
        .model("MODEL")
        .messages([ChatCompletionRequestUserMessage::from(question).into()])
        .response_format(ResponseFormat::JsonSchema { json_schema })
        .max_completion_tokens(200_u32)
        .build()?;
    let completion = client.chat().create(request).await?;
    let message = &completion.choices[0].message;
    let text = message.content.as_deref().unwrap_or_default();
    let river: River = serde_json::from_str(text)?;
    println!("{}", serde_json::to_string(&river)?);
    Ok(())
}
