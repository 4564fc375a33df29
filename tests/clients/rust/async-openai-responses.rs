// async-openai-responses
use async_openai::Client;
use async_openai::types::responses::{CreateResponseArgs, ResponseStreamEvent};
use futures_util::StreamExt;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    let request = CreateResponseArgs::default()
        .model("MODEL")
        .instructions("Tell stories.")
        .input("Tell a story about a river.")
        .store(false)
        .max_output_tokens(40_u32)
        .temperature(0.0)
        .build()?;
    let mut stream = client.responses().create_stream(request).await?;
    while let Some(event) = stream.next().await {
        let ended = match event? {
            ResponseStreamEvent::ResponseOutputTextDelta(event) => {
                print!("{}", event.delta);
                continue;
            }
            ResponseStreamEvent::ResponseCompleted(event) => event.response,
            ResponseStreamEvent::ResponseIncomplete(event) => event.response,
            _ => continue,
        };
        let tokens = ended.usage.map_or(0, |usage| usage.output_tokens);
        println!("\n{tokens} tokens");
    }
    Ok(())
}
