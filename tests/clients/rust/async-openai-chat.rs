// async-openai-chat
use async_openai::Client;
use async_openai::types::chat::{
    ChatCompletionRequestSystemMessage, ChatCompletionRequestUserMessage,
    CreateChatCompletionRequestArgs,
};
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    let request = CreateChatCompletionRequestArgs::default()
        .model("MODEL")
        .messages([
            ChatCompletionRequestSystemMessage::from("Answer in one sentence.").into(),
            ChatCompletionRequestUserMessage::from("What is the capital of France?").into(),
        ])
        .max_completion_tokens(100_u32)
        .temperature(0.0)
        .build()?;
    let completion = client.chat().create(request).await?;
    let message = &completion.choices[0].message;
    println!("{}", message.content.as_deref().unwrap_or_default());
    Ok(())
}
