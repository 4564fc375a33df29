// async-openai-responses-tools
use async_openai::Client;
use async_openai::types::responses::{
    CreateResponseArgs, EasyInputMessage, FunctionTool, InputItem, OutputItem, ToolChoiceOptions,
};
use serde_json::json;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    let weather = FunctionTool {
        name: "get_weather".into(),
        description: Some("How warm it is in a city.".into()),
        parameters: Some(json!({
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": false,
        })),
        strict: Some(true),
        ..Default::default()
    };
    let mut input: Vec<InputItem> = vec![EasyInputMessage::from("How warm is it in Paris?").into()];
    let mut request = CreateResponseArgs::default()
        .model("MODEL")
        .input(input.clone())
        .tools(weather)
        .tool_choice(ToolChoiceOptions::Required)
        .parallel_tool_calls(false)
        .store(false)
        .max_output_tokens(100_u32)
        .build()?;
    for item in client.responses().create(request.clone()).await?.output {
        input.push(item.clone().into());
        let OutputItem::FunctionCall(call) = item else {
            continue;
        };
        println!("{} {}", call.name, call.arguments);
        let result = json!({
            "type": "function_call_output", "call_id": call.call_id, "output": "21 °C",
        });
        input.push(serde_json::from_value(result)?);
    }
    request.input = input.into();
    request.tool_choice = Some(ToolChoiceOptions::None.into());
    let answered = client.responses().create(request).await?;
    println!("{}", answered.output_text().unwrap_or_default());
    Ok(())
}
