// async-openai-stream
use async_openai::Client;
use async_openai::types::chat::{
    ChatCompletionRequestUserMessage, ChatCompletionStreamOptions, CreateChatCompletionRequestArgs,
};
use futures_util::StreamExt;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    let usage = ChatCompletionStreamOptions {
        include_usage: Some(true),
        include_obfuscation: None,
    };
    let request = CreateChatCompletionRequestArgs::default()
        .model("MODEL")
        .messages([ChatCompletionRequestUserMessage::from("Tell a story about a river.").into()])
        .max_completion_tokens(40_u32)
        .temperature(0.0)
        .stream_options(usage)
        .build()?;
    let mut stream = client.chat().create_stream(request).await?;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        for choice in chunk.choices {
            print!("{}", choice.delta.content.unwrap_or_default());
        }
        if let Some(usage) = chunk.usage {
            println!("\n{} tokens", usage.completion_tokens);
        }
    }
    Ok(())
}
