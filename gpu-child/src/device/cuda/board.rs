//! Progress of a step on the device, posted by its kernels in memory
//! (`kernels/cuda/board.cuh`), and its reader, in another thread, for a step that does not end.
//!
//! The copy uses its own stream and the copy engine, which works while a kernel hangs. The words are
//! the latest posts of the kernels: before a step has begun, they are those of the previous step.

use super::context::{Context, StreamEvent};
use super::headers::constant;
use super::memory::{Arena, DevicePtr, Pinned, Purpose, fetch};
use super::step_queue::STEPS;
use crate::device::ProgressProbe;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_ipc::Fault;

/// Words of the board before the words of blocks.
const HEAD_WORDS: usize = constant!("board.cuh", BOARD_BLOCKS);
/// Numbers of a layer's exchanges.
const LAYER_EXCHANGES: u32 = constant!("step_plan.cuh", EXCHANGES) as u32;
/// Timeout of a copy that takes microseconds.
const PATIENCE: Duration = Duration::from_millis(200);
/// Limits of a report: distinct places of blocks, and runs of blocks in each.
const MAX_PLACES: usize = 6;
const MAX_RUNS: usize = 6;

/// Product that a launch makes input rows for, if every product has its own launch. Gate and up often make the inputs
/// of down themselves, without a post in between. Products of a per-layer input belong to down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Qkv,
    Output,
    GateUp,
    Down,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Qkv, Self::Output, Self::GateUp, Self::Down];

    /// The posted number; the head's is `Qkv` of the layer after the last.
    #[must_use]
    pub fn of(self, layer: usize) -> u32 {
        (1 + Self::ALL.len() * layer + self as usize) as u32
    }

    fn name(self) -> &'static str {
        match self {
            Self::Qkv => "qkv",
            Self::Output => "attention's output",
            Self::GateUp => "gate and up",
            Self::Down => "down",
        }
    }
}

#[derive(Debug)]
pub struct Board {
    words: Arena,
    blocks: usize,
    n_layers: u32,
}

impl Board {
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(context: &Context, n_layers: usize) -> Result<Self, Fault> {
        let blocks = context.multiprocessors() as usize;
        let words = Arena::new(context, Purpose::Scratch, 4 * (HEAD_WORDS + blocks) as u64)?;
        words.clear(context)?;
        Ok(Self {
            words,
            blocks,
            n_layers: n_layers as u32,
        })
    }

    #[must_use]
    pub fn on_device(&self) -> DevicePtr<u32> {
        self.words.at(0, HEAD_WORDS + self.blocks)
    }

    /// Creates the reader. `ends` are recorded at the end of the steps in flight.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn progress_probe(
        &self,
        context: &Context,
        ends: [StreamEvent; STEPS],
    ) -> Result<BoardProbe, Fault> {
        let bytes = self.words.bytes() as usize;
        Ok(BoardProbe {
            context: context.with_a_stream_of_its_own()?,
            words: self.words.at(0, bytes),
            copy: Pinned::new(bytes)?,
            copied: StreamEvent::new()?,
            ends,
            n_layers: self.n_layers,
        })
    }
}

#[derive(Debug)]
pub struct BoardProbe {
    context: Context,
    words: DevicePtr<u8>,
    copy: Pinned,
    copied: StreamEvent,
    ends: [StreamEvent; STEPS],
    n_layers: u32,
}

impl ProgressProbe for BoardProbe {
    fn account(&mut self) -> String {
        self.read()
            .unwrap_or_else(|fault| format!("the driver says {fault}"))
    }
}

impl BoardProbe {
    fn read(&mut self) -> Result<String, Fault> {
        self.context.enter()?;
        let mut on_their_way = 0;
        for end in &self.ends {
            on_their_way += usize::from(!end.is_reached()?);
        }
        if on_their_way == 0 {
            return Ok("the device has ended all that it was given".to_owned());
        }
        // SAFETY: as many bytes; the pinned memory is looked at when the copy is over, and outlives
        // the context.
        unsafe { fetch(&self.context, self.copy.bytes_mut(), self.words) }?;
        self.copied.record(&self.context)?;
        let asked = Instant::now();
        while !self.copied.is_reached()? {
            if asked.elapsed() > PATIENCE {
                return Ok(format!(
                    "the device, with {on_their_way} steps on their way, does not even copy"
                ));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let (words, _) = self.copy.bytes_mut().as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        let stands = account(&words, self.n_layers);
        Ok(format!("the device has {on_their_way} to end, {stands}"))
    }
}

/// Formats the board as text.
fn account(words: &[u32], n_layers: u32) -> String {
    let [step, stage, number, _, blocks @ ..] = words else {
        return "its board is too small".to_owned();
    };
    match (*stage, *number) {
        (0, 0) => format!("has the inputs of step {step}, and has begun nothing of it"),
        (stage, 0) => {
            let (layer, part) = ((stage - 1) / 4, (stage - 1) % 4);
            let name = match layer == n_layers {
                true => "head".to_owned(),
                false => format!("{} of layer {layer}", Stage::ALL[part as usize].name()),
            };
            format!("is in step {step}, launch by launch, and has begun {name} last")
        }
        (_, number) => format!(
            "is in step {step}, in one launch: {}",
            account_of_blocks(blocks, number, n_layers)
        ),
    }
}

/// Places of the blocks, the least advanced first.
fn account_of_blocks(blocks: &[u32], first: u32, n_layers: u32) -> String {
    let mut places: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
    for (block, said) in blocks.iter().enumerate() {
        let place = Place::of(*said, first, n_layers);
        places.entry(place).or_default().push(block);
    }
    let mut text = String::new();
    for (place, blocks) in places.iter().take(MAX_PLACES) {
        let _ = match text.is_empty() {
            true => Ok(()),
            false => write!(text, "; "),
        };
        let _ = write!(text, "blocks {} {}", runs(blocks), place.words(n_layers));
    }
    if places.len() > MAX_PLACES {
        let _ = write!(text, "; and {} places more", places.len() - MAX_PLACES);
    }
    text
}

/// Place of a block of `decode_step.cu`: its progress in the exchanges of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The block has posted nothing of this step.
    NotBegun,
    /// Waits for the data of this exchange, or has it and works.
    At(u32),
    Done,
}

impl Place {
    fn of(said: u32, first: u32, n_layers: u32) -> Self {
        let last = LAYER_EXCHANGES * n_layers;
        match said.wrapping_sub(first) {
            done if done == last + 1 => Self::Done,
            exchange if exchange <= last => Self::At(exchange),
            _ => Self::NotBegun,
        }
    }

    fn words(self, n_layers: u32) -> String {
        let exchange = match self {
            Self::NotBegun => return "have not begun".to_owned(),
            Self::Done => return "are done".to_owned(),
            Self::At(exchange) => exchange,
        };
        let layer = exchange / LAYER_EXCHANGES;
        let what = match exchange % LAYER_EXCHANGES {
            0 if layer == n_layers => return format!("are at the head (number {exchange})"),
            0 => Stage::Qkv.name(),
            1 => "attention",
            2 => "the merge of attention",
            3 => Stage::Output.name(),
            4 => Stage::GateUp.name(),
            _ => Stage::Down.name(),
        };
        format!("are at {what} of layer {layer} (number {exchange})")
    }
}

/// `0-3,7`.
fn runs(blocks: &[usize]) -> String {
    let runs: Vec<&[usize]> = blocks.chunk_by(|one, next| one + 1 == *next).collect();
    let mut text: Vec<String> = runs
        .iter()
        .take(MAX_RUNS)
        .map(|run| match run {
            [only] => only.to_string(),
            _ => format!("{}-{}", run[0], run[run.len() - 1]),
        })
        .collect();
    if runs.len() > MAX_RUNS {
        text.push(format!("... ({} in all)", blocks.len()));
    }
    text.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: u32 = 24;
    const FIRST: u32 = 1_000;

    fn one_launch(blocks: &[u32]) -> String {
        let head = [7, 0, FIRST, 0];
        account(&[&head, blocks].concat(), LAYERS)
    }

    #[test]
    fn blocks_that_stand_are_told_by_place_the_last_first() {
        let mut blocks = [FIRST + 6 * 3 + 5; 132];
        blocks[0] = FIRST + 6 * 3 + 2;
        blocks[1] = FIRST + 6 * 4 + 1;
        blocks[41] = FIRST + 6 * 3 + 4;
        assert_eq!(
            one_launch(&blocks),
            "is in step 7, in one launch: blocks 0 are at the merge of attention of layer 3 (number \
             20); blocks 41 are at gate and up of layer 3 (number 22); blocks 2-40,42-131 are at down \
             of layer 3 (number 23); blocks 1 are at attention of layer 4 (number 25)"
        );
    }

    #[test]
    fn what_a_block_said_in_another_step_is_no_place_in_this_one() {
        let last = LAYER_EXCHANGES * LAYERS;
        for (said, place) in [
            (0, Place::NotBegun),
            (!0, Place::NotBegun),
            // A finished block of the previous step, with numbers up to the first one of this step.
            (FIRST - 1, Place::NotBegun),
            (FIRST + last + 1, Place::Done),
        ] {
            assert_eq!(Place::of(said, FIRST, LAYERS), place, "{said}");
        }
        let head = Place::of(FIRST + last, FIRST, LAYERS).words(LAYERS);
        assert_eq!(head, "are at the head (number 144)");
    }

    #[test]
    fn launches_tell_which_of_them_began_last() {
        let stage = |stage| account(&[9, stage, 0, 0], LAYERS);
        assert_eq!(
            stage(0),
            "has the inputs of step 9, and has begun nothing of it"
        );
        let began =
            |name: &str| format!("is in step 9, launch by launch, and has begun {name} last");
        assert_eq!(stage(Stage::Qkv.of(0)), began("qkv of layer 0"));
        assert_eq!(stage(Stage::Down.of(23)), began("down of layer 23"));
        assert_eq!(stage(Stage::Qkv.of(24)), began("head"));
    }

    #[test]
    fn whatever_lies_there_the_account_is_short() {
        let blocks: Vec<u32> = (0..264).map(|block| FIRST + block * 7 % 145).collect();
        let told = one_launch(&blocks);
        assert!(told.len() < 900, "{}: {told}", told.len());
        assert!(account(&[], LAYERS).len() < 100);
        let any = account(&[1, u32::MAX, 0, 0], LAYERS);
        assert!(any.contains("layer"), "{any}");
    }
}
