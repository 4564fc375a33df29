// async-openai-tools
use async_openai::Client;
use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, ChatCompletionRequestAssistantMessageArgs,
    ChatCompletionRequestToolMessage, ChatCompletionRequestUserMessage, ChatCompletionTool,
    ChatCompletionToolChoiceOption as ToolChoice, ChatCompletionTools,
    CreateChatCompletionRequestArgs, FunctionObjectArgs, ToolChoiceOptions,
};
use serde_json::json;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    let function = FunctionObjectArgs::default()
        .name("get_weather")
        .description("How warm it is in a city.")
        .parameters(json!({
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": false,
        }))
        .build()?;
    let weather = ChatCompletionTool { function };
    let mut request = CreateChatCompletionRequestArgs::default()
        .model("MODEL")
        .messages([ChatCompletionRequestUserMessage::from("How warm is it in Paris?").into()])
        .tools(vec![ChatCompletionTools::Function(weather)])
        .tool_choice(ToolChoice::Mode(ToolChoiceOptions::Required))
        .parallel_tool_calls(false)
        .max_completion_tokens(100_u32)
        .build()?;
    let asked = client.chat().create(request.clone()).await?;
    let message = &asked.choices[0].message;
    let calls = message.tool_calls.clone().unwrap_or_default();
    let assistant = ChatCompletionRequestAssistantMessageArgs::default()
        .tool_calls(calls.clone())
        .build()?;
    request.messages.push(assistant.into());
    for call in calls {
        let ChatCompletionMessageToolCalls::Function(call) = call else {
            continue;
        };
        println!("{} {}", call.function.name, call.function.arguments);
        let result = ChatCompletionRequestToolMessage {
            content: "21 °C".into(),
            tool_call_id: call.id,
        };
        request.messages.push(result.into());
    }
    request.tool_choice = Some(ToolChoice::Mode(ToolChoiceOptions::None));
    let answered = client.chat().create(request).await?;
    let message = &answered.choices[0].message;
    println!("{}", message.content.as_deref().unwrap_or_default());
    Ok(())
}
