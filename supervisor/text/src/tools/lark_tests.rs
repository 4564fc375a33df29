//! Grammars of tool calls, checked against the grammar compiler and the parser of calls.

use super::*;
use crate::tools::message::Message;
use crate::tools::{Parameters, Parser, thinking_budget};
use crate::{Structure, Text};
use worker_orcd_grammar::Compiler;
use worker_orcd_ipc::{TokenKind, TokenizerFacts, TokenizerKind};

/// Vocabulary of one token for each byte, an end token, and control tokens.
fn facts(control: &[&str]) -> TokenizerFacts {
    let bytes = (0..=255).map(|byte| (format!("<0x{byte:02X}>"), TokenKind::Byte));
    let named = ["</s>"].iter().chain(control);
    let named = named.map(|text| ((*text).to_owned(), TokenKind::Control));
    let (tokens, kinds): (Vec<_>, Vec<_>) = bytes.chain(named).unzip();
    TokenizerFacts {
        kind: TokenizerKind::SentencePiece,
        pre: String::new(),
        scores: vec![0.0; tokens.len()],
        tokens,
        kinds,
        merges: vec![],
        bos: None,
        eos: Some(END),
        end_of_generation: vec![END],
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: None,
    }
}

const END: TokenId = TokenId(256);

struct Model {
    facts: TokenizerFacts,
    tokenizer: Tokenizer,
}

impl Model {
    fn with(control: &[&str]) -> Self {
        let facts = facts(control);
        let tokenizer = Tokenizer::from_facts(&facts).unwrap();
        Self { facts, tokenizer }
    }

    fn grammar(&self, structure: Structure, parsing: &Parsing) -> Grammar {
        structure.grammar(parsing, &self.tokenizer)
    }

    /// Tokens of a text: control tokens, and bytes for the rest.
    fn tokens(&self, text: &str) -> Vec<TokenId> {
        let (mut at, mut tokens) = (0, Vec::new());
        while at < text.len() {
            let named = self.facts.tokens.iter().enumerate().skip(257);
            let mut named = named.filter(|(_, name)| text[at..].starts_with(name.as_str()));
            match named.next() {
                Some((id, name)) => {
                    tokens.push(TokenId(id as u32));
                    at += name.len();
                }
                None => {
                    tokens.push(TokenId(u32::from(text.as_bytes()[at])));
                    at += 1;
                    while !text.is_char_boundary(at) {
                        tokens.push(TokenId(u32::from(text.as_bytes()[at])));
                        at += 1;
                    }
                }
            }
        }
        tokens
    }

    /// True if the grammar accepts this text as a complete answer.
    fn allows(&self, grammar: &Grammar, text: &str) -> bool {
        self.allows_of(&Compiler::new(&self.facts).unwrap(), grammar, text)
    }

    fn allows_of(&self, compiler: &Compiler, grammar: &Grammar, text: &str) -> bool {
        let mut matcher = compiler
            .compile(grammar)
            .unwrap_or_else(|error| panic!("{grammar:?}: {error}"));
        let mut tokens = self.tokens(text).into_iter().chain([END]);
        tokens.all(|token| matcher.mask().unwrap().allows(token) && matcher.accept(token).is_ok())
    }
}

fn add() -> Function {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"type": "boolean"}},
        "required": ["a"], "additionalProperties": false,
        "$defs": {"n": {"type": "integer"}},
    });
    Function {
        path: "tools[0].function.parameters".to_owned(),
        name: "add".to_owned(),
        parameters: Some(schema.to_string()),
        is_strict: true,
    }
}

fn odd() -> Function {
    Function {
        path: "tools[1].function.parameters".to_owned(),
        name: "o\"d\\d/é\u{7f}".to_owned(),
        parameters: None,
        is_strict: false,
    }
}

fn rules(must_call: bool, may_repeat: bool) -> Structure {
    Structure::Calls(CallRules {
        functions: vec![add(), odd()],
        must_call,
        may_repeat,
    })
}

fn parsing(syntax: Syntax, thinking: Option<ReasoningFormat>) -> Parsing {
    Parsing {
        calls: Some(syntax),
        thinking,
        parameters: Parameters::of_tools(&tools().to_string()),
    }
}

/// The functions, as the list for the template.
fn tools() -> Value {
    let each = [add(), odd()].map(|function| {
        let schema = function.parameters.unwrap_or("{}".to_owned());
        let schema: Value = serde_json::from_str(&schema).unwrap();
        json!({"function": {"name": function.name, "parameters": schema}})
    });
    json!(each)
}

/// Examples for a syntax and kind of vocabulary: one call, several calls, and texts that are not calls.
struct Case {
    syntax: Syntax,
    control: &'static [&'static str],
    one: &'static str,
    two: &'static str,
    wrong: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        syntax: Syntax::Hermes,
        control: &[],
        one: "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": true}}\n</tool_call>",
        two: "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \
              \"o\\\"d\\\\d/é\u{7f}\", \"arguments\": {}}\n</tool_call>",
        wrong: &[
            "<tool_call>\n{\"name\": \"sub\", \"arguments\": {}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>",
        ],
    },
    Case {
        syntax: Syntax::Hermes,
        control: &["<tool_call>", "</tool_call>"],
        one: "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        two: "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \
              \"add\", \"arguments\": {\"a\": 22}}\n</tool_call>",
        wrong: &["<tool_call>\n{\"name\": \"add\", \"arguments\": {\"c\": 1}}\n</tool_call>"],
    },
    Case {
        syntax: Syntax::Llama3,
        control: &["<|python_tag|>"],
        one: "{\"name\": \"add\", \"parameters\": {\"a\": 1}}",
        two: "{\"name\": \"add\", \"parameters\": {\"a\": 1}}; {\"name\": \"add\", \"parameters\": {\"a\": 2}}",
        wrong: &[
            "{\"name\": \"add\", \"parameters\": {\"a\": 1.5}}",
            " {\"name\": \"ad\"",
        ],
    },
    Case {
        syntax: Syntax::Mistral,
        control: &["[TOOL_CALLS]"],
        one: "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}]",
        two: "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"add\", \"arguments\": \
              {\"a\": 2}}]",
        wrong: &["[TOOL_CALLS]add{\"a\": 1}", "[TOOL_CALLS]"],
    },
    Case {
        syntax: Syntax::Phi,
        control: &["<|tool_call|>", "<|/tool_call|>"],
        one: "<|tool_call|>[{\"name\": \"add\", \"arguments\": {\"a\": 1}}]<|/tool_call|>",
        two: "<|tool_call|>[{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"add\", \"arguments\": \
              {\"a\": 2}}]<|/tool_call|>",
        wrong: &["functools[{\"name\": \"sub\", \"arguments\": {\"a\": 1}}]"],
    },
    Case {
        syntax: Syntax::Phi,
        control: &[],
        one: "functools[{\"name\": \"add\", \"arguments\": {\"a\": 1}}]",
        two: "functools[{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"add\", \"arguments\": \
              {\"a\": 2}}]",
        wrong: &[
            "functools[{\"name\": \"sub\", \"arguments\": {\"a\": 1}}]",
            "<|tool_call|>[{\"name\": \"sub\", \"arguments\": {}}]",
        ],
    },
    Case {
        syntax: Syntax::Qwen3Coder,
        control: &[],
        one: "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\ntrue\n</parameter>\n\
              </function>\n</tool_call>",
        two: "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n\
              <function=o\"d\\d/é\u{7f}>\n</function>\n</tool_call>",
        wrong: &[
            "<tool_call>\n<function=sub>\n</function>\n</tool_call>",
            "<tool_call>\n<function=add>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
            "<tool_call>\n<function=add>\n</function>\n</tool_call>",
            "I <function=add>",
        ],
    },
    Case {
        syntax: Syntax::Qwen3Coder,
        control: &["<tool_call>", "</tool_call>"],
        one: "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        two: "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n\
              <function=add>\n<parameter=a>\n22\n</parameter>\n</function>\n</tool_call>",
        wrong: &[
            "<tool_call>\n<function=add>\n<parameter=c>\n1\n</parameter>\n</function>\n</tool_call>",
        ],
    },
    Case {
        syntax: Syntax::Gemma4,
        control: &["<|tool_call>", "<tool_call|>", "<|\"|>"],
        one: "<|tool_call>call:add{a:1,b:true}<tool_call|>",
        two: "<|tool_call>call:add{a:1}<tool_call|><|tool_call>call:o\"d\\d/é\u{7f}{}<tool_call|>",
        wrong: &[
            "<|tool_call>call:sub{}<tool_call|>",
            "<|tool_call>call:add{a:x}<tool_call|>",
            "<|tool_call>call:add{}<tool_call|>",
            "<|tool_call>call:add{b:true,a:1}<tool_call|>",
            "<|tool_call>call:add{a:1}",
        ],
    },
    Case {
        syntax: Syntax::Gemma4,
        control: &[],
        one: "<|tool_call>call:add{a:1}<tool_call|>",
        two: "<|tool_call>call:add{a:1}<tool_call|><|tool_call>call:add{a:22}<tool_call|>",
        wrong: &["<|tool_call>call:add{c:1}<tool_call|>", "I <|tool_call>"],
    },
];

fn read(parsing: &Parsing, text: &str) -> Message {
    let (mut parser, mut events) = (Parser::new(parsing), Vec::new());
    parser.push(text, &mut events);
    parser.finish(false, &mut events);
    let mut message = Message::default();
    events.into_iter().for_each(|event| message.add(event));
    message
}

#[test]
fn a_model_that_must_call_writes_calls_that_are_read_and_nothing_else() {
    for case in CASES {
        let (model, parsing) = (Model::with(case.control), parsing(case.syntax, None));
        let name = format!("{:?} {:?}", case.syntax, case.control);
        let one = model.grammar(rules(true, false), &parsing);
        let many = model.grammar(rules(true, true), &parsing);
        for (text, calls) in [(case.one, 1), (case.two, 2)] {
            assert!(model.allows(&many, text), "{name}: {text}");
            assert_eq!(model.allows(&one, text), calls == 1, "{name}: {text}");
            let message = read(&parsing, text);
            assert_eq!(message.content, "", "{name}");
            assert_eq!(message.calls.len(), calls, "{name}: {message:?}");
            assert!(message.calls.iter().all(|call| call.is_whole), "{name}");
        }
        let text = ["", "I add.", &format!("I add. {}", case.one)];
        for wrong in case.wrong.iter().copied().chain(text) {
            assert!(!model.allows(&many, wrong), "{name}: {wrong}");
        }
    }
}

#[test]
fn a_model_that_may_call_writes_any_text_and_calls_that_obey() {
    for case in CASES {
        let (model, parsing) = (Model::with(case.control), parsing(case.syntax, None));
        let name = format!("{:?} {:?}", case.syntax, case.control);
        let grammar = model.grammar(rules(false, true), &parsing);
        for text in ["", "I {add} \"é\"\n\n [1].", case.one, case.two] {
            assert!(model.allows(&grammar, text), "{name}: {text}");
        }
        let behind = format!("I add.\n{}", case.one);
        assert!(
            model.allows(&grammar, &behind) || case.syntax == Syntax::Llama3,
            "{name}"
        );
        for wrong in case.wrong {
            assert!(!model.allows(&grammar, wrong), "{name}: {wrong}");
        }
        let one = model.grammar(rules(false, false), &parsing);
        assert!(!model.allows(&one, case.two), "{name}");
    }
}

#[test]
fn mistral_s_newer_vocabularies_write_names_before_arguments() {
    let model = Model::with(&["[TOOL_CALLS]", "[ARGS]"]);
    let parsing = parsing(Syntax::Mistral, None);
    let rules = |functions| {
        Structure::Calls(CallRules {
            functions,
            must_call: true,
            may_repeat: true,
        })
    };
    let named = model.grammar(rules(vec![add()]), &parsing);
    let two = "[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]add[ARGS]{\"a\": 2}";
    assert!(model.allows(&named, two));
    assert_eq!(read(&parsing, two).calls.len(), 2);
    // A name with special characters is allowed only in a list.
    let listed = model.grammar(rules(vec![odd()]), &parsing);
    assert!(!model.allows(&listed, "[TOOL_CALLS]o\"d\\d/é\u{7f}[ARGS]{}"));
    let list = "[TOOL_CALLS][{\"name\": \"o\\\"d\\\\d/é\u{7f}\", \"arguments\": {}}]";
    assert!(model.allows(&listed, list));
}

#[test]
fn a_channel_of_gemma_4_comes_before_a_call() {
    const CHANNEL: [&str; 2] = ["<|channel>", "<channel|>"];
    for control in [&[][..], &CHANNEL] {
        let model = Model::with(control);
        let parsing = parsing(Syntax::Gemma4, Some(ReasoningFormat::Gemma4));
        let grammar = model.grammar(rules(true, false), &parsing);
        let call = "<|tool_call>call:add{a:1}<tool_call|>";
        let whole = format!("<|channel>thought\nIs it {{a:1}}?\n<channel|>{call}");
        for text in [call, &whole] {
            assert!(model.allows(&grammar, text), "{control:?} {text}");
        }
        assert!(!model.allows(&grammar, &whole.replace("<channel|>", "")));
        let message = read(&parsing, &whole);
        assert_eq!(
            (message.reasoning.as_str(), message.calls.len()),
            ("Is it {a:1}?", 1)
        );
        let free = model.grammar(rules(false, false), &parsing);
        assert!(model.allows(&free, "I add."));
        let again = "I <|channel>thought\nHm.<channel|> add.";
        assert!(!model.allows(&free, again), "{control:?}");
    }
}

#[test]
fn thoughts_come_before_what_is_held_and_are_free() {
    let thought = "<think>\nIs it {\"a\": 1}? <tool_call>\n</think>\n\n";
    for control in [&[][..], &["<think>", "</think>"]] {
        let model = Model::with(control);
        for (structure, text) in [
            (rules(true, true), CASES[0].one),
            (rules(false, true), "I add."),
            (
                Structure::Answer(Grammar::JsonSchema("{\"type\":\n\"object\"}".to_owned())),
                "{\"a\": [1, 2]}",
            ),
            (
                Structure::Answer(Grammar::Regex("[a-c]+/\\d{2}".to_owned())),
                "abc/12",
            ),
            (
                Structure::Answer(Grammar::Choice(vec!["a\"b".to_owned(), "/".to_owned()])),
                "a\"b",
            ),
        ] {
            let tagged = parsing(Syntax::Hermes, Some(ReasoningFormat::Tagged));
            let opened = parsing(Syntax::Hermes, Some(ReasoningFormat::Opened));
            let behind = format!("{thought}{text}");
            let grammar = model.grammar(structure.clone(), &tagged);
            for whole in [text, &behind] {
                assert!(model.allows(&grammar, whole), "{control:?} {whole}");
            }
            assert!(!model.allows(&grammar, &behind.replace("</think>", "")));
            let grammar = model.grammar(structure, &opened);
            let rest = behind.trim_start_matches("<think>");
            assert!(model.allows(&grammar, rest), "{control:?} {rest}");
            assert!(!model.allows(&grammar, text), "{control:?} {text}");
        }
    }
}

#[test]
fn what_nobody_can_follow_is_passed_over_where_a_tool_is_not_strict() {
    let model = Model::with(&[]);
    let compiler = Compiler::new(&model.facts).unwrap();
    for (is_strict, is_refused) in [(true, true), (false, false)] {
        let function = Function {
            parameters: Some("{\"type\":\"object\",\"unevaluatedItems\":false,\"uniqueItems\":true,\"dependentSchemas\":{}}".to_owned()),
            is_strict,
            ..add()
        };
        let compiled = compiler.compile(&function.grammar(Some(Syntax::Hermes)));
        assert_eq!(compiled.is_err(), is_refused, "{compiled:?}");
    }
}

const MESSAGES: Parsing = Parsing {
    calls: Some(Syntax::Harmony),
    thinking: Some(ReasoningFormat::Channels),
    parameters: Parameters::NONE,
};
const THOUGHT: &str = "<|channel|>analysis<|message|>Is it {\"a\": 1}?\n<|end|><|start|>assistant";
const REMARK: &str = "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant";
const ADD: &str = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1}";

/// Models that have gpt-oss's marks as control tokens, and as text.
fn channels() -> [Model; 2] {
    let marks = MESSAGES.marks().collect::<Vec<_>>();
    [Model::with(&marks), Model::with(&[])]
}

#[test]
fn a_form_is_held_in_the_last_message() {
    let form = Structure::Answer(Grammar::JsonSchema("{\"type\":\"object\"}".to_owned()));
    let answer = "<|channel|>final<|message|>{\"a\": [1, 2]}";
    for model in channels() {
        let grammar = model.grammar(form.clone(), &MESSAGES);
        for before in ["", THOUGHT, &THOUGHT.repeat(2)] {
            let text = [before, answer].concat();
            assert!(model.allows(&grammar, &text), "{text}");
            assert_eq!(read(&MESSAGES, &text).content, "{\"a\": [1, 2]}");
        }
        for wrong in [
            "{\"a\": 1}",
            "<|channel|>final<|message|>Yes.",
            "<|channel|>commentary<|message|>{}",
            &[THOUGHT, "{}"].concat(),
        ] {
            assert!(!model.allows(&grammar, wrong), "{wrong}");
        }
    }
}

#[test]
fn messages_to_functions_obey() {
    for model in channels() {
        let [must, may] = [true, false].map(|must| model.grammar(rules(must, true), &MESSAGES));
        for before in ["", THOUGHT, &THOUGHT.repeat(2)] {
            let text = [before, ADD].concat();
            assert!(
                model.allows(&must, &text) && model.allows(&may, &text),
                "{text}"
            );
            let message = read(&MESSAGES, &text);
            assert_eq!((&*message.content, message.calls.len()), ("", 1), "{text}");
            assert!(message.calls[0].is_whole && message.calls[0].name == "add");
        }
        let odd = ADD
            .replace("add", "o\"d\\d/é\u{7f}")
            .replace("{\"a\": 1}", "{}");
        assert!(model.allows(&must, &odd) && model.allows(&may, &odd));
        let remark = [THOUGHT, REMARK, THOUGHT, ADD].concat();
        let answer = [THOUGHT, "<|channel|>final<|message|>I add {1}.\n"].concat();
        for text in [&*remark, &answer, "<|channel|>commentary<|message|>I add."] {
            assert!(
                model.allows(&may, text) && !model.allows(&must, text),
                "{text}"
            );
        }
        for wrong in [
            &*ADD.replace("add", "sub"),
            &ADD.replace('1', "\"x\""),
            &ADD.replace("<|constrain|>json", ""),
            &[ADD, THOUGHT].concat(),
            "I add.",
        ] {
            assert!(
                !model.allows(&may, wrong) && !model.allows(&must, wrong),
                "{wrong}"
            );
        }
    }
}

#[test]
fn a_bound_on_thoughts_ends_their_first_message() {
    let [model, _] = channels();
    let text = Text::from_facts(&model.facts).unwrap();
    let budget = thinking_budget(5, ReasoningFormat::Channels, &text).unwrap();
    assert_eq!(
        budget.open.as_deref(),
        Some("<|channel|>analysis<|message|>")
    );
    let end = text.tokenizer().control_of(["<|end|>"].into_iter());
    assert_eq!((&*budget.close, &budget.closing), ("<|end|>", &end));
}

/// Parameters of every kind that a text may be confused with another of.
const CONFUSING: &str = r#"{"type": "object", "properties": {
    "s": {"type": "string", "maxLength": 12}, "e": {"enum": ["on", "null", null, 5]},
    "n": {"type": "integer", "minimum": -5, "maximum": 50}, "maybe": {"type": ["string", "null"], "maxLength": 9},
    "flag": {"type": ["boolean", "string"], "maxLength": 9}, "list": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    "tree": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"k": {"type": "string"}}, "additionalProperties": false}]},
    "any": {}}, "required": ["s", "maybe", "any"], "additionalProperties": false}"#;

const PIECES: &[&str] = &[
    "\n</parameter>\n",
    "</parameter>",
    "</function>\n</tool_call>",
    "</function>",
    "<parameter=n>\n",
    "null",
    "None",
    "true",
    "False",
    "5",
    "-",
    "{\"k\": \"",
    "\"}",
    "[\"",
    "\"]",
    "\"",
    "\n",
    " ",
    "é",
    "x",
    "on",
    "\\",
    ".",
];

/// Random text that the grammar allows; `None`: it has no end yet.
fn random_text(compiler: &Compiler, grammar: &Grammar, seed: u64) -> Option<String> {
    let mut matcher = compiler.compile(grammar).unwrap();
    let (mut bytes, mut state) = (Vec::new(), seed);
    let mut random = |limit: usize| {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as usize % limit
    };
    for _ in 0..400 {
        if matcher.mask().unwrap().allows(END) {
            return Some(String::from_utf8(bytes).unwrap());
        }
        let before = bytes.len();
        for byte in PIECES[random(PIECES.len())].bytes() {
            let token = TokenId(u32::from(byte));
            if !matcher.mask().unwrap().allows(token) {
                break;
            }
            matcher.accept(token).unwrap();
            bytes.push(byte);
        }
        if bytes.len() == before {
            // Not a beginning of any piece, or of another one.
            let mask = matcher.mask().unwrap();
            let mut allowed = (0..=255_u32).filter(|byte| mask.allows(TokenId(*byte)));
            let first = allowed.next()?;
            let only = allowed.next().is_none();
            if only {
                matcher.accept(TokenId(first)).unwrap();
                bytes.push(first as u8);
            }
        }
    }
    None
}

#[test]
fn tags_that_a_grammar_allows_are_read_as_valid_arguments() {
    let function = Function {
        path: "tools[0].function.parameters".to_owned(),
        name: "f".to_owned(),
        parameters: Some(CONFUSING.to_owned()),
        is_strict: true,
    };
    let parsing = Parsing {
        calls: Some(Syntax::Qwen3Coder),
        thinking: None,
        parameters: Parameters::of_tools(&format!(
            "[{{\"function\":{{\"name\":\"f\",\"parameters\":{CONFUSING}}}}}]"
        )),
    };
    let rules = Structure::Calls(CallRules {
        functions: vec![function],
        must_call: true,
        may_repeat: false,
    });
    let model = Model::with(&[]);
    let grammar = model.grammar(rules, &parsing);
    let schema = Grammar::JsonSchema(CONFUSING.to_owned());
    let compiler = Compiler::new(&model.facts).unwrap();
    let mut found = 0;
    for seed in 0..300 {
        let Some(text) = random_text(&compiler, &grammar, seed) else {
            continue;
        };
        found += 1;
        let message = read(&parsing, &text);
        assert_eq!(
            (message.content.as_str(), message.calls.len()),
            ("", 1),
            "{text}"
        );
        let call = &message.calls[0];
        assert!(
            call.is_whole && model.allows_of(&compiler, &schema, &call.arguments),
            "{text}\n{}",
            call.arguments
        );
    }
    assert!(found > 100, "{found}");
}
