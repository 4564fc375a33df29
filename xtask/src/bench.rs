//! `cargo xtask bench`: measures, prints, and writes `bench/results/NAME.md` with the command, the machine and the
//! commit, so that a figure can be verified and measured again.

mod cpu;
mod gpu;
pub mod report;
mod schemas;
mod service;
mod transformers;

use anyhow::Result;
use clap::Subcommand;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Prompt processing, decoding and memory beside llama.cpp, interleaved, same file, same
    /// threads.
    Cpu(cpu::Arguments),
    /// A bundle that measures on a GPU machine without Rust; here too, where there is a GPU.
    Gpu(gpu::Arguments),
    /// Streamed tokens per second with a child that computes nothing.
    Overhead(service::Arguments),
    /// /health, cancel and disconnect while every slot is busy.
    Latency(service::Arguments),
    /// The supervisor's memory over 100,000 requests.
    Memory(service::Arguments),
    /// Recovery: how soon deaths and hangs are noticed, and how long streams pause, beside a cold
    /// start and llama.cpp's server.
    Recovery(service::Arguments),
    /// The gaps between tokens beside 10,000 idle connections and 200 slow clients, and without.
    Crowd(service::Arguments),
    /// Masks of a large vocabulary, and streams under a schema beside streams without one.
    Grammar(service::Arguments),
    /// Streams beside 1,000 hostile grammars: the gaps between their tokens, how soon each grammar is answered, and memory.
    GrammarSiege(service::Arguments),
    /// Tokens per second through both processes, beside the same executor alone.
    Isolation(service::Arguments),
    /// Decoding with drafts from the text of the request, beside decoding without.
    Speculation(service::Arguments),
    /// An agent's turns: prompt tokens that are computed, over those that are new, beside llama.cpp's server.
    Turns(service::Arguments),
    /// Schemas that are accepted, and whether answers of a random model are valid under them.
    Schemas(schemas::Arguments),
    /// Logits of tiny random models, of every architecture and type, beside those of Hugging Face's `transformers`.
    Transformers,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.bench {
        Bench::Cpu(arguments) => cpu::run(arguments),
        Bench::Gpu(arguments) => gpu::run(arguments),
        Bench::Overhead(arguments) => service::run("overhead", arguments),
        Bench::Latency(arguments) => service::run("latency", arguments),
        Bench::Memory(arguments) => service::run("memory", arguments),
        Bench::Recovery(arguments) => service::run_recovery(arguments),
        Bench::Crowd(arguments) => service::run("crowd", arguments),
        Bench::Grammar(arguments) => service::run_grammar(arguments),
        Bench::GrammarSiege(arguments) => service::run("grammar-siege", arguments),
        Bench::Isolation(arguments) => service::run("isolation", arguments),
        Bench::Speculation(arguments) => service::run("speculation", arguments),
        Bench::Turns(arguments) => service::run("turns", arguments),
        Bench::Schemas(arguments) => schemas::run(arguments),
        Bench::Transformers => transformers::run(),
    }
}
