//! Prompts of conversations with tools, compared with Hugging Face's transformers: `tests/oracle/chat_templates.py`.
//!
//! Covers templates with different formats of tools and calls, and those of the supported families. Both must refuse
//! the same conversations, with the same messages.

use serde_json::{Value, json};
use std::fs;
use worker_orcd_api::body::parse;
use worker_orcd_api::fields::Fields;
use worker_orcd_api::limits::RequestLimits;
use worker_orcd_api::openai::{Kind, request};
use worker_orcd_api::request::{Input, Reader};
use worker_orcd_api::sampling::ModelTerms;
use worker_orcd_ipc::Sampling;
use worker_orcd_tests::families;
use worker_orcd_tests::oracle;
use worker_orcd_text::template::{ChatTemplate, TemplateError};
use worker_orcd_text::tools::ChatTerms;
use worker_orcd_text::{Rendering, TemplateSource};

const MODEL: ModelTerms = ModelTerms {
    n_embd: 64,
    vocabulary: 1000,
    context: 1000,
    defaults: Sampling::DEFAULT,
    chat: ChatTerms::UNKNOWN,
};

/// Tags around JSON, results joined into a user's turn, reasoning of the last turn only.
const TAGS: &str = r#"
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "You may call:\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1) %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content is string and loop.index0 > ns.last - 3 %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
        {{- content.lstrip('\n') }}
        {%- for call in message.tool_calls %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"#;

/// Schemas with an indent, one call a turn, `ipython` for results.
const PARAMETERS: &str = r#"{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' and tools is not none and loop.first %}
        {{- 'Answer with {"name": name, "parameters": {name: value}}.\n\n' }}
        {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- elif message.role == 'tool' or message.role == 'ipython' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
        {%- if message.content is mapping or message.content is not string %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|' + message.role + '|>' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}"#;

/// Required ids, whole functions as JSON, iteration over keys of arguments.
const IDS: &str = r#"{{ bos_token }}
{%- if tools is not none and tools is defined %}
    {{- '[AVAILABLE_TOOLS][' }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- '{"type": "function", "function": {' }}
        {%- for key, value in tool.items() if key != 'return' %}
            {%- if value is string %}{{- '"' + key + '": "' + value + '"' }}
            {%- else %}{{- '"' + key + '": ' + value | tojson }}{%- endif %}
            {%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
        {{- '}}' }}{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' }}{%- endif %}
    {%- endfor %}
    {{- '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}
            {%- if not call.id is defined or call.id | length != 9 %}{{- raise_exception('ids of length 9') }}{%- endif %}
            {{- ', "id": "' + call.id + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
            {%- for key, value in call.function.arguments | items %}{{- ' ' ~ key ~ '=' }}{{ value }}{%- endfor %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message['role'] == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}' }}
    {%- else %}{{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"#;

/// Calls only where content is null.
const NONE: &str = r#"{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '<|User|>' + message['content'] }}{%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is none %}
        {%- for call in message['tool_calls'] %}
            {{- '<|call|>' + call['function']['name'] + '\n' + call['function']['arguments'] | tojson + '<|end|>' }}
        {%- endfor %}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {{- '<|Assistant|>' + message['content'] + '<|end|>' }}
    {%- endif %}
    {%- if message['role'] == 'tool' %}{{- '<|output|>' + message['content'] }}{%- endif %}
{%- endfor %}"#;

/// Channels, types in TypeScript's syntax, reasoning without a following answer, the name of a call from the turn
/// before.
const CHANNELS: &str = r##"
{%- macro type_of(spec, depth=0) -%}
    {%- if spec.type == "array" -%}
        {%- set inner = type_of(spec['items'], depth + 1) if spec['items'] else 'any' -%}
        {%- if inner | length > 50 -%}{{- 'any[]' -}}{%- else -%}{{- inner + '[]' -}}{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping -%}
        {{- spec.type | join(' | ') -}}
    {%- elif spec.enum -%}{{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- '{
' }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name -}}{%- if name not in (spec.required or []) -%}{{- '?' }}{%- endif -%}{{- ': ' }}
            {{ type_of(inner, depth + 1) }}{%- if not loop.last -%}{{- ', ' }}{%- endif -%}
        {%- endfor -%}
        {{- '}' }}
    {%- else -%}{{- {'integer': 'number', 'string': 'string'}.get(spec.type, 'any') -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro tools_of(space, tools) -%}
    {{- '## ' + space + '

namespace ' + space + ' {

' }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- '// ' ~ (tool.description or '-') ~ '
' }}{{- 'type ' + tool.name + ' = ' }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- '(_: {
' }}
            {%- for name, spec in tool.parameters.properties.items() %}
                {%- if spec.description %}{{- '// ' + spec.description + '
' }}{%- endif %}
                {{- name }}{%- if name not in (tool.parameters.required or []) -%}{{- '?' }}{%- endif -%}{{- ': ' }}
                {{- type_of(spec) }}
                {%- if spec.default is defined -%}{{- ', // default: ' + spec.default | tojson }}{%- endif -%}
                {{- ',
' }}
            {%- endfor %}
            {{- '}) => any;

' }}
        {%- else -%}{{- '() => any;

' }}
        {%- endif -%}
    {%- endfor %}
    {{- '} // ' + space }}
{%- endmacro -%}
{%- macro system() -%}
    {%- if identity is not defined %}{%- set identity = "You are a model." %}{%- endif %}
    {{- identity + '
In ' + strftime_now('%Y') + '

' }}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- 'Reasoning: ' + reasoning_effort + '

# Channels: analysis, commentary, final.' }}
    {%- if tools -%}{{- "
Calls go to commentary: 'functions'." }}{%- endif -%}
{%- endmacro -%}
{{- '<|start|>system<|message|>' }}{{- system() }}{{- '<|end|>' }}
{%- if messages[0].role == 'developer' or messages[0].role == 'system' %}
    {%- set instructions = messages[0].content %}{%- set turns = messages[1:] %}
{%- else %}{%- set instructions = '' %}{%- set turns = messages %}
{%- endif %}
{%- if instructions or tools %}
    {{- '<|start|>developer<|message|>' }}
    {%- if instructions %}{{- '# Instructions

' }}{{- instructions }}{{- '

' }}{%- endif %}
    {%- if tools -%}{{- '# Tools

' }}{{- tools_of('functions', tools) }}{%- endif -%}
    {{- '<|end|>' }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in turns -%}
    {%- if message.role == 'assistant' -%}
        {%- if 'content' in message and '<|channel|>final<|message|>' in message.content %}
            {{- raise_exception('no channels here') }}
        {%- endif %}
        {%- if 'tool_calls' in message %}
            {%- set answered = namespace(found=false) %}
            {%- for later in turns[loop.index:] %}
                {%- if later.role == 'assistant' and 'tool_calls' not in later %}{%- set answered.found = true %}{%- endif %}
            {%- endfor %}
            {%- set call = message.tool_calls[0] %}{%- if call.function %}{%- set call = call.function %}{%- endif %}
            {%- if message.content and message.thinking %}
                {{- raise_exception('content or thinking, not both') }}
            {%- elif message.content and not answered.found %}
                {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.content + '<|end|>' }}
            {%- elif message.thinking and not answered.found %}
                {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
            {%- endif %}
            {{- '<|start|>assistant to=' }}{{- 'functions.' + call.name + '<|channel|>commentary ' }}
            {{- (call.content_type if call.content_type is defined else 'json') + '<|message|>' }}
            {{- call.arguments | tojson }}{{- '<|call|>' }}{%- set last.name = call.name %}
        {%- else %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
            {%- set last.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last.name is none %}{{- raise_exception('no call') }}{%- endif %}
        {{- '<|start|>functions.' + last.name }}
        {{- ' to=assistant<|channel|>commentary<|message|>' + message.content | tojson + '<|end|>' }}
    {%- elif message.role == 'user' -%}{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"##;

/// Generation marks for training, texts that may be null, JSON in other forms.
const MARKS: &str = r#"
{%- for message in messages %}
    {{- '[' + message.role + ']' }}
    {%- generation -%}
        {% set said = message.content | default('nothing') %}
        {%- if message.reasoning_content %}{{ message.reasoning_content | trim | title }}. {% endif -%}
        {{ message.content }} {{ 'content' in message }} {{ said[:9] | upper }}
        {%- for call in message.tool_calls or [] %}
            {{- call.function.arguments | tojson(separators=(',', ':'), sort_keys=true) }}
            {{- call.id ~ loop.index ~ loop.last }}
        {%- endfor %}
    {% endgeneration %}
    {{- said }}
{% endfor %}
{%- for tool in tools or [] if tool.function.parameters is mapping %}
    {{- tool.function | tojson(indent=1, ensure_ascii=true, sort_keys=true) }}
    {%- if tool.function.parameters.properties is not defined %}{% continue %}{% endif %}
    {{- tool.function.parameters.properties | dictsort | map('first') | join(', ') }}
{% endfor %}"#;

const USER: &str = r#"{"role": "user", "content": "  Wie warm ist es in Köln? <b>\"&\"</b>\n"}"#;

const CALLED: &str = r#"{"role": "assistant", "content": null, "reasoning_content": "\nHm\n", "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments":
    "{\"city\": \"Köln <&>\", \"days\": [1, 2.5, true, null, {\"a\": {}}], \"b\": {\"z\": 1.0, \"a\": -3}}"}}]}"#;

const RESULT: &str =
    r#"{"role": "tool", "tool_call_id": "abcdefghi", "content": "{\"celsius\": 21.0}"}"#;

const ANSWER: &str = r#"{"role": "assistant", "content": "21 °C."}"#;

const AGAIN: &str = r#"{"role": "user", "content": "Danke"}"#;

/// Reasoning beside a text and a call.
const REMARKED: &str = r#"{"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}"#;

/// Three calls at once, beside an empty text.
const CALLED_THRICE: &str = r#"{"role": "assistant", "content": "", "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Köln\"}"}},
    {"id": "jklmnopqr", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Bonn\"}"}},
    {"id": "stuvwxyz0", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}"#;

const SECOND_RESULT: &str =
    r#"{"role": "tool", "tool_call_id": "jklmnopqr", "content": "\n20 \u00b0C  "}"#;

/// Result of a call that found nothing.
const THIRD_RESULT: &str = r#"{"role": "tool", "tool_call_id": "stuvwxyz0", "content": ""}"#;

/// Result of [`REMARKED`]'s call.
const NO_RESULT: &str = r#"{"role": "tool", "tool_call_id": "abcdefghi", "content": ""}"#;

/// Answer with the reasoning before it, as clients send it back.
const THOUGHT: &str = r#"{"role": "assistant", "content": "\n\n21 °C.\n", "reasoning_content": "\nIt is\n\nwarm.\n"}"#;

/// The same, with reasoning and text in one string.
const THOUGHT_ALOUD: &str =
    r#"{"role": "assistant", "content": "<think>\nIt is warm.\n</think>\n\n21 °C."}"#;

const SYSTEM: &str = r#"{"role": "system", "content": "Be brief."}"#;

/// Characters that JSON must or may escape, template markup, nested values.
const CALLED_STRANGELY: &str = r#"{"role": "assistant", "content": null, "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments":
    "{\"city\": \"東京 \\ud83c\\udf21\\ufe0f e\\u0301\", \"größe\": {\"ключ\": [[], [[\"\\u0000\\u001f\\u007f\\u2028\\\\ \\\"it's\\\" {{ x }}\\t\"]]]}}"}}]}"#;

/// Numbers at the edges of Python's formatting.
const CALLED_IN_NUMBERS: &str = r#"{"role": "assistant", "content": null, "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments":
    "{\"\": [0.1, -0.0, 1e-7, 1E16, 123456789.125, 5e-324, 9007199254740993, -9223372036854775808]}"}}]}"#;

/// Tools with keys in the worker's order; the order within parameters is the client's.
const TOOLS: &str = r#"[{"type": "function", "function": {"name": "get_weather", "description": "Says \u00e9.",
    "parameters": {"type": "object", "required": ["city"], "properties": {"city": {"enum": ["Köln"]},
    "days": {"minimum": 0.00001, "maximum": 1e22, "enum": [-0, -0.0, 1e15, 2.50, 18446744073709551615]}}}}},
    {"type": "function", "function": {"name": "now"}}]"#;

/// Parameters of many types.
const TYPED: &str = r#"[{"type": "function", "function": {"name": "search", "description": "Finds.",
    "parameters": {"type": "object", "required": ["query"], "properties": {
    "query": {"type": "string", "description": "Words."}, "sort": {"type": "string", "enum": ["a", "b\"c"], "default": "a"},
    "top": {"type": "integer", "default": 10}, "tags": {"type": "array", "items": {"type": "string"}},
    "deep": {"type": "array", "items": {"type": "array", "items": {"type": "object", "required": ["x"],
    "properties": {"x": {"type": "integer"}, "y": {"type": "array"}}}}},
    "long": {"type": "array", "items": {"type": "object", "properties": {"a_long_name": {"type": "string"},
    "another_long_name": {"type": "string"}}}},
    "any": {"type": ["string", "null"]}, "other": {}}}}}]"#;

/// Nested schemas and references, in non-ASCII text.
const NESTED: &str = r##"[{"type": "function", "function": {"name": "get_weather", "description": "Sagt \"wie warm\"\nes \\ ist: \ud83c\udf21 <b>.",
    "parameters": {"$defs": {"größe": {"anyOf": [{"type": "number", "exclusiveMinimum": 0.1}, {"type": "null"}]}},
    "type": "object", "additionalProperties": false, "required": [], "properties": {
    "größe": {"$ref": "#/$defs/größe"}, "городов": {"type": "array", "minItems": 1, "items": {"type": "object",
    "properties": {"名": {"type": "string", "pattern": "^\\p{L}+\\s?$", "default": null}, "": {"const": [[], {}, ""]}}}}}}}}]"##;

/// All ways to declare a function without parameters.
const WITHOUT_PARAMETERS: &str = r#"[{"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": {}}},
    {"type": "function", "function": {"name": "later", "description": "Says it.", "parameters": {"type": "object", "properties": {}}}}]"#;

fn body(messages: &[&str], tools: &str) -> String {
    body_with(messages, tools, "")
}

/// `more` are further fields, each with a comma in front.
fn body_with(messages: &[&str], tools: &str, more: &str) -> String {
    let messages = messages.join(", ");
    format!("{{\"messages\": [{messages}], \"tools\": {tools}{more}}}")
}

/// Conversations as texts: the order of keys is part of a prompt.
fn bodies() -> [(&'static str, String); 12] {
    [
        ("no tools", body(&[USER], "[]")),
        ("tools", body(&[USER], TOOLS)),
        (
            "a call and its result",
            body(&[USER, CALLED, RESULT], TOOLS),
        ),
        (
            "another turn",
            body(&[USER, CALLED, RESULT, ANSWER, AGAIN], "[]"),
        ),
        (
            "a system message",
            body(&[SYSTEM, USER, CALLED, RESULT], TOOLS),
        ),
        (
            "three calls and their results",
            body(
                &[USER, CALLED_THRICE, RESULT, SECOND_RESULT, THIRD_RESULT],
                TOOLS,
            ),
        ),
        (
            "calls one behind the other",
            body(
                &[USER, CALLED, RESULT, REMARKED, RESULT, ANSWER, AGAIN],
                TOOLS,
            ),
        ),
        (
            "thoughts of an earlier turn",
            body(&[SYSTEM, USER, THOUGHT, AGAIN, CALLED, RESULT], TOOLS),
        ),
        (
            "thoughts within a text",
            body(&[USER, THOUGHT_ALOUD, AGAIN], TOOLS),
        ),
        (
            "strange arguments",
            body(
                &[USER, CALLED_STRANGELY, RESULT, CALLED_IN_NUMBERS, RESULT],
                NESTED,
            ),
        ),
        (
            "nothing to say",
            body(&[USER, REMARKED, NO_RESULT], WITHOUT_PARAMETERS),
        ),
        (
            "types, and no thoughts wanted",
            body_with(&[USER], TYPED, ", \"reasoning_effort\": \"none\""),
        ),
    ]
}

/// Conversations that only a template with channels distinguishes.
fn bodies_of_channels() -> [(&'static str, String); 3] {
    let effort = ", \"reasoning_effort\": \"high\"";
    [
        (
            "an effort and types",
            body_with(&[SYSTEM, USER], TYPED, effort),
        ),
        (
            "thoughts, a text and a call",
            body(&[USER, REMARKED, RESULT], TOOLS),
        ),
        (
            "the same behind an answer",
            body(&[USER, REMARKED, RESULT, ANSWER, AGAIN], TOOLS),
        ),
    ]
}

/// Template, and the texts of BOS and EOS.
struct Source<'a> {
    name: &'a str,
    template: &'a str,
    begin: &'a str,
    end: &'a str,
}

/// Worker's result for a body: a prompt, or the template's error.
fn case(source: &Source<'_>, story: &str, body: &str) -> Value {
    let Reader { names, read } = request::reader(Kind::Chat);
    let read = |fields: Fields<'_>| read(fields, &RequestLimits::NONE, &MODEL);
    let read = parse(body.as_bytes(), names, read).expect("a right body");
    let Input::Chat(chat) = read.generation.input else {
        panic!("messages");
    };
    let template = ChatTemplate::compile(TemplateSource {
        jinja: source.template.to_owned(),
        begin: source.begin.to_owned(),
        end: source.end.to_owned(),
    });
    let rendering = Rendering {
        conversation: chat.conversation,
        settings: chat.settings,
        max_bytes: 1 << 20,
    };
    let mut case = json!({
        "name": format!("{}: {story}", source.name), "template": source.template, "body": body,
        "begin": source.begin, "end": source.end,
    });
    match template.expect("Jinja").render(&rendering) {
        Ok(prompt) => case["prompt"] = prompt.into(),
        Err(TemplateError::Refused(why)) => case["refusal"] = why.into(),
        Err(other) => panic!("{}: {story}: {other}", source.name),
    }
    case
}

#[test]
fn prompts_with_tools_and_calls_are_those_of_transformers() {
    let mut cases = Vec::new();
    for (name, template) in [
        ("tags", TAGS),
        ("parameters", PARAMETERS),
        ("ids", IDS),
        ("none", NONE),
        ("channels", CHANNELS),
        ("marks", MARKS),
    ] {
        let source = Source {
            name,
            template,
            begin: "<s>",
            end: "</s>",
        };
        let more = bodies_of_channels().into_iter();
        let more = more.filter(|_| name == "channels");
        let all = bodies().into_iter().chain(more);
        cases.extend(all.map(|(story, body)| case(&source, story, &body)));
    }
    are_transformers(cases);
}

/// Templates of published models (`tests/oracle/families.py`).
#[test]
fn prompts_of_each_family_are_those_of_transformers() {
    let mut cases = Vec::new();
    for family in families::templates() {
        let source = Source {
            name: &family.name,
            template: &family.template,
            begin: &family.begin,
            end: &family.end,
        };
        let talk = body(&[USER, ANSWER, AGAIN], "[]");
        let mut stories = vec![("a question", body(&[USER], "[]")), ("a talk", talk)];
        if family.has_tools {
            stories.extend(bodies());
        }
        let all = stories.into_iter();
        cases.extend(all.map(|(story, body)| case(&source, story, &body)));
    }
    are_transformers(cases);
}

/// Templates of unsupported models, or of families with another one above: their formats of tools are unusual.
#[test]
fn prompts_of_other_templates_that_know_tools_are_those_of_transformers() {
    let mut cases = Vec::new();
    for name in [
        "command_a",
        "deepseek_v3",
        "exaone4",
        "jamba",
        "llama4",
        "mistral_v3_tekken",
        "qwen3_5",
    ] {
        let source = Source {
            name,
            template: &families::collected(name),
            begin: "<s>",
            end: "</s>",
        };
        let all = bodies().into_iter();
        cases.extend(all.map(|(story, body)| case(&source, story, &body)));
    }
    are_transformers(cases);
}

fn are_transformers(cases: Vec<Value>) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("cases.json");
    fs::write(&path, Value::from(cases).to_string()).expect("the directory is ours");
    oracle::run("chat_templates.py", &[path.as_os_str()]);
}
