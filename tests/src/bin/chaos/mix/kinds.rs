//! Table of the kinds of requests: API, delivery, and body.

use super::super::api::Api;
use super::held::{
    CHOICE, EXPRESSIONS, Form, GRAMMAR, SCHEMAS, calls_are_whole, is_one_call, tools,
};
use super::{Expects, Random, Request, length, words};
use serde_json::{Value, json};
use worker_orcd_tests::hostile_grammars::refused;

/// Delivery of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Streamed,
    Whole,
}

#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub api: Api,
    pub delivery: &'static [Delivery],
    /// Returns a body and its expected outcome.
    make: fn(&mut Random) -> (Value, Expects),
}

const BOTH: &[Delivery] = &[Delivery::Streamed, Delivery::Whole];
const STREAMED: &[Delivery] = &[Delivery::Streamed];
const WHOLE: &[Delivery] = &[Delivery::Whole];

type Make = fn(&mut Random) -> (Value, Expects);

const fn kind(name: &'static str, api: Api, delivery: &'static [Delivery], make: Make) -> Kind {
    Kind {
        name,
        api,
        delivery,
        make,
    }
}

/// The worker's own API, without formats, tools and log probabilities.
pub const EXECUTE: [Kind; 4] = [
    kind("execute, greedy", Api::Execute, STREAMED, |random| {
        execute(random, &json!({"temperature": 0.0}))
    }),
    kind("execute, sampled", Api::Execute, STREAMED, |random| {
        let drawn = drawn(random);
        execute(random, &drawn)
    }),
    kind("execute, penalties", Api::Execute, STREAMED, |random| {
        let penalties = json!({
            "temperature": 0.8,
            "repetition_penalty": 1.0 + 0.3 * random.unit(),
            "frequency_penalty": 0.5 * random.unit(),
            "presence_penalty": 0.5 * random.unit(),
        });
        execute(random, &penalties)
    }),
    kind("execute, stop", Api::Execute, STREAMED, |random| {
        let stop = *random.pick(&[".", ", and", "\n\n", " the "]);
        execute(
            random,
            &json!({"temperature": 0.7, "stop": [stop, "\u{2014}"]}),
        )
    }),
];

const CLIENTS: [Kind; 20] = [
    kind("chat", Api::Chat, BOTH, |random| {
        let drawn = drawn(random);
        (chat(random, &drawn), Expects::Answer)
    }),
    kind("chat, log probabilities", Api::Chat, BOTH, |random| {
        let extra = json!({"logprobs": true, "top_logprobs": random.below(21)});
        (chat(random, &extra), Expects::Answer)
    }),
    kind("chat, several choices", Api::Chat, BOTH, |random| {
        let extra = json!({"n": 2 + random.below(3), "stop": *random.pick(&[".", "\n", "!"])});
        (chat(random, &extra), Expects::Answer)
    }),
    kind("chat, biased", Api::Chat, BOTH, |random| {
        let bias = bias(random);
        (chat(random, &json!({"logit_bias": bias})), Expects::Answer)
    }),
    kind("chat, JSON schema", Api::Chat, BOTH, |random| {
        let form = *random.pick(&SCHEMAS);
        let named = json!({"name": "form", "schema": (form.value)()});
        let extra = json!({"response_format": {"type": "json_schema", "json_schema": named}});
        (held(chat(random, &extra)), Expects::Form(form.is_met))
    }),
    kind("chat, expression", Api::Chat, BOTH, |random| {
        let form = *random.pick(&EXPRESSIONS);
        (
            held(chat(random, &outputs(form))),
            Expects::Form(form.is_met),
        )
    }),
    kind("chat, choice", Api::Chat, BOTH, |random| {
        (
            held(chat(random, &outputs(CHOICE))),
            Expects::Form(CHOICE.is_met),
        )
    }),
    kind("chat, tools required", Api::Chat, BOTH, |random| {
        let named = json!({"type": "function", "function": {"name": "wait"}});
        let choice = random.pick(&[json!("required"), named]).clone();
        let extra = json!({
            "tools": functions(), "tool_choice": choice, "parallel_tool_calls": false,
        });
        (held(chat(random, &extra)), Expects::Form(is_one_call))
    }),
    kind("chat, tools auto", Api::Chat, BOTH, |random| {
        let extra = json!({"tools": functions(), "messages": calling(random), "max_tokens": 60});
        (chat(random, &extra), Expects::Form(calls_are_whole))
    }),
    kind(
        "completions, log probabilities",
        Api::Completions,
        BOTH,
        |random| {
            let extra = json!({"logprobs": random.below(21)});
            (completion(random, &extra), Expects::Answer)
        },
    ),
    kind("completions, echo", Api::Completions, BOTH, |random| {
        // A death during the prompt loses the most, so the answer is short.
        let extra = json!({
            "echo": true, "logprobs": random.below(21), "max_tokens": random.below(9),
            "n": 1 + random.below(2),
        });
        (completion(random, &extra), Expects::Answer)
    }),
    kind(
        "completions, several prompts",
        Api::Completions,
        BOTH,
        |random| {
            let prompts: Vec<_> = (0..2 + random.below(2)).map(|_| words(random)).collect();
            let extra = json!({"prompt": prompts, "n": 1 + random.below(2), "max_tokens": 8 + random.below(24)});
            (completion(random, &extra), Expects::Answer)
        },
    ),
    kind(
        "completions, JSON schema",
        Api::Completions,
        BOTH,
        |random| {
            let form = *random.pick(&SCHEMAS);
            let extra = outputs(form);
            (held(completion(random, &extra)), Expects::Form(form.is_met))
        },
    ),
    kind("completions, grammar", Api::Completions, BOTH, |random| {
        let extra = outputs(GRAMMAR);
        (completion(random, &extra), Expects::Form(GRAMMAR.is_met))
    }),
    kind("responses", Api::Responses, BOTH, |random| {
        (response(random, &json!({})), Expects::Answer)
    }),
    kind("responses, JSON schema", Api::Responses, BOTH, |random| {
        let form = *random.pick(&SCHEMAS);
        let format = json!({"type": "json_schema", "name": "form", "schema": (form.value)()});
        let extra = json!({"text": {"format": format}, "max_output_tokens": HELD_TOKENS});
        (response(random, &extra), Expects::Form(form.is_met))
    }),
    kind("responses, tools", Api::Responses, BOTH, |random| {
        let flat = tools().map(|(name, parameters)| {
            json!({"type": "function", "name": name, "description": "Does it.", "parameters": parameters})
        });
        let extra = json!({
            "tools": flat, "tool_choice": {"type": "function", "name": random.pick(&["place", "wait"])},
            "max_output_tokens": HELD_TOKENS,
        });
        (response(random, &extra), Expects::Form(is_one_call))
    }),
    kind("messages", Api::Messages, BOTH, |random| {
        (message(random, &json!({})), Expects::Answer)
    }),
    kind("messages, JSON schema", Api::Messages, BOTH, |random| {
        let form = *random.pick(&SCHEMAS);
        let format = json!({"type": "json_schema", "schema": (form.value)()});
        let extra = json!({"output_config": {"format": format}});
        (held(message(random, &extra)), Expects::Form(form.is_met))
    }),
    kind("messages, tools", Api::Messages, BOTH, |random| {
        let tools = tools().map(|(name, schema)| {
            json!({"name": name, "description": "Does it.", "input_schema": schema})
        });
        let extra = json!({
            "tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        });
        (held(message(random, &extra)), Expects::Form(is_one_call))
    }),
];

const OTHERS: [Kind; 2] = [
    kind("embeddings", Api::Embeddings, WHOLE, |random| {
        let texts: Vec<_> = (0..=random.below(8)).map(|_| words(random)).collect();
        let body = json!({"input": texts, "encoding_format": "base64"});
        (body, Expects::Answer)
    }),
    kind("hostile grammars", Api::Chat, WHOLE, |random| {
        let hostile = refused();
        let (_, extra) = random.pick(&hostile);
        (chat(random, extra), Expects::Refusal)
    }),
];

pub const ALL: [Kind; 26] = {
    let mut all = [EXECUTE[0]; 26];
    let mut index = 0;
    while index < all.len() {
        all[index] = match index {
            0..4 => EXECUTE[index],
            4..24 => CLIENTS[index - 4],
            _ => OTHERS[index - 24],
        };
        index += 1;
    }
    all
};

/// Enough for every format here, also of a model that writes much white space between its parts.
const HELD_TOKENS: u32 = 500;

impl Kind {
    pub(super) fn request(&self, delivery: Delivery, random: &mut Random) -> Request {
        let (mut body, expects) = (self.make)(random);
        let is_streamed = delivery == Delivery::Streamed;
        let says_so = !matches!(self.api, Api::Execute | Api::Embeddings);
        if says_so && is_streamed {
            body["stream"] = json!(true);
        }
        if matches!(self.api, Api::Chat | Api::Completions) && is_streamed {
            body["stream_options"] = json!({"include_usage": true});
        }
        let what = match self.delivery {
            [_] => self.name.to_owned(),
            _ if is_streamed => format!("{}, streamed", self.name),
            _ => format!("{}, whole", self.name),
        };
        Request {
            what,
            api: self.api,
            is_streamed,
            body,
            expects,
        }
    }
}

fn merged(mut body: Value, extra: &Value) -> Value {
    for (name, value) in extra.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

fn drawn(random: &mut Random) -> Value {
    json!({
        "temperature": 0.5 + random.unit(),
        "top_p": 0.8 + 0.2 * random.unit(),
        "top_k": random.below(80),
    })
}

fn execute(random: &mut Random, extra: &Value) -> (Value, Expects) {
    let body = json!({
        "prompt": words(random), "max_tokens": length(random), "seed": random.next() >> 12,
        "ignore_eos": random.below(4) == 0,
    });
    (merged(body, extra), Expects::Answer)
}

/// Two in three are drawn, the others greedy.
fn temperature(random: &mut Random) -> f64 {
    match random.below(3) {
        0 => 0.0,
        _ => 0.5 + 0.5 * random.unit(),
    }
}

fn chat(random: &mut Random, extra: &Value) -> Value {
    let body = json!({
        "messages": [{"role": "user", "content": words(random)}], "max_tokens": length(random),
        "temperature": temperature(random), "seed": random.next() >> 12,
    });
    merged(body, extra)
}

fn completion(random: &mut Random, extra: &Value) -> Value {
    let body = json!({
        "prompt": words(random), "max_tokens": length(random), "temperature": temperature(random),
        "seed": random.next() >> 12,
    });
    merged(body, extra)
}

fn response(random: &mut Random, extra: &Value) -> Value {
    let body = json!({
        "instructions": "Be short.", "input": words(random), "max_output_tokens": length(random),
        "temperature": temperature(random), "seed": random.next() >> 12,
    });
    merged(body, extra)
}

fn message(random: &mut Random, extra: &Value) -> Value {
    merged(chat(random, &json!({"system": "Be short."})), extra)
}

/// Adds a token limit that holds every format.
fn held(body: Value) -> Value {
    merged(body, &json!({"max_tokens": HELD_TOKENS}))
}

fn outputs(form: Form) -> Value {
    json!({"structured_outputs": {form.name: (form.value)()}})
}

fn functions() -> Value {
    let function = |(name, parameters): (&str, Value)| {
        json!({"type": "function", "function": {
            "name": name, "description": "Does it.", "parameters": parameters, "strict": true,
        }})
    };
    tools().map(function).into()
}

/// Conversation in which the assistant has called a tool each time: a small model continues like that.
fn calling(random: &mut Random) -> Value {
    let mut messages = Vec::new();
    for _ in 0..3 {
        let s = 1 + random.below(2);
        let call = json!({"name": "wait", "arguments": {"s": s}});
        messages.push(json!({"role": "user", "content": format!("Wait {s} s.")}));
        messages.push(json!({
            "role": "assistant", "content": format!("<tool_call>\n{call}\n</tool_call>"),
        }));
    }
    messages.push(json!({"role": "user", "content": format!("Wait {} s.", 1 + random.below(2))}));
    messages.into()
}

/// Bias on tokens of any vocabulary.
fn bias(random: &mut Random) -> Value {
    let mut bias = json!({});
    for _ in 0..20 {
        let token = 100 + random.below(150);
        bias[token.to_string()] = json!(10.0 * random.unit() - 5.0);
    }
    bias
}
