// async-openai-embeddings
use async_openai::Client;
use async_openai::types::embeddings::CreateEmbeddingRequestArgs;
use serde_json::json;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    let request = CreateEmbeddingRequestArgs::default()
        .model("MODEL")
        .input([
            "A cat sat on the mat.",
            "A kitten lay on the rug.",
            "Interest rates rose in March.",
        ])
        .build()?;
    let data = client.embeddings().create(request).await?.data;
    let cosine = |a: usize, b: usize| {
        let pairs = data[a].embedding.iter().zip(&data[b].embedding);
        pairs.map(|(x, y)| x * y).sum::<f32>()
    };
    println!(
        "{}",
        json!({"same": cosine(0, 0), "near": cosine(0, 1), "far": cosine(0, 2)})
    );
    Ok(())
}
