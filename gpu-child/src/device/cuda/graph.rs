//! Decode steps of larger batches, recorded once and launched as a whole.
//!
//! The launches of a step take longer to make than to run. While a batch goes on decoding, its launches
//! are the same from step to step: buffers have fixed addresses, and what changes (tokens,
//! positions, page tables) lies in memory. What the launches depend on is the [`GraphKey`]; a graph
//! is recorded when a key is seen for the second time in a row, and kept. What NVIDIA's driver takes
//! for it is seen in what is free before and after; dropped graphs leave it to later ones.
//!
//! Where there is no memory for one (a neighbour took it all), the launches are made one by one: the
//! same bits, later.

use super::context::{Context, check};
use super::memory::Purpose;
use super::plan::Plan;
use cudarc::driver::sys::{self, CUstreamCaptureMode as CaptureMode};
use worker_orcd_ipc::Fault;

/// Graphs kept at a time; batches that lose a sequence now and then leave their old ones behind.
const MAX_GRAPHS: usize = 64;

/// Steps until a graph is tried again, when there was no memory for one: trying takes longer than
/// a step.
const STEPS_WITHOUT: u32 = 1000;

/// Steps until a graph is recorded in a child that has taken over; the other one is gone by then.
const STEPS_BESIDE_A_DEATH: u32 = 300;

/// The sizes that the grids of a step's launches depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphKey {
    rows: usize,
    tiles: usize,
    /// Splits of the longest sequence; zero where one block computes all of a unit's.
    splits: usize,
}

impl GraphKey {
    /// `None` for batches that are not decoding only, or draw more than is kept at a time.
    #[must_use]
    pub fn of(plan: &Plan<'_>, head_rows: usize, splits: usize) -> Option<Self> {
        let rows = plan.rows.len();
        let decodes = plan.sequences.len() == rows && plan.drawing.len() == rows;
        (decodes && rows <= head_rows).then_some(Self {
            rows,
            tiles: plan.tiles.len(),
            splits,
        })
    }
}

#[derive(Debug)]
struct Graph {
    key: GraphKey,
    exec: sys::CUgraphExec,
}

// SAFETY: an executable graph belongs to a context, not to a thread.
unsafe impl Send for Graph {}

#[derive(Debug, Default)]
pub struct Graphs {
    /// The one used last is the last.
    kept: Vec<Graph>,
    /// Key of the step before, when it was not launched as a graph.
    seen: Option<GraphKey>,
    /// Steps for which no graph is recorded.
    steps_without: u32,
}

impl Graphs {
    /// Launches the graph of this shape, recording it by `pass` if it was seen before. False when
    /// there is none and the caller must launch by itself.
    ///
    /// # Errors
    /// When recording or launching fails.
    pub fn launch(
        &mut self,
        context: &Context,
        key: GraphKey,
        pass: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        let found = self.kept.iter().position(|graph| graph.key == key);
        if let Some(at) = found {
            let graph = self.kept.remove(at);
            self.kept.push(graph);
        } else if self.seen == Some(key) && self.steps_without == 0 {
            if self.kept.len() == MAX_GRAPHS {
                let oldest = self.kept.remove(0);
                context.synchronize("dropping a graph")?;
                // SAFETY: every launch of it is over.
                let result = unsafe { sys::cuGraphExecDestroy(oldest.exec) };
                check(result, "dropping a graph")?;
            }
            let (before, _) = context.memory()?;
            match record(context, pass) {
                Err(Fault::OutOfMemory { .. }) => return Ok(self.do_without()),
                exec => self.kept.push(Graph { key, exec: exec? }),
            }
            let (after, _) = context.memory()?;
            let grown = before.saturating_sub(after);
            context.ledger().add(Purpose::Graphs, grown);
        } else {
            self.seen = Some(key);
            self.steps_without = self.steps_without.saturating_sub(1);
            return Ok(false);
        }
        let graph = self.kept.last().expect("found or just pushed");
        // SAFETY: the graph was instantiated in this context.
        let result = unsafe { sys::cuGraphLaunch(graph.exec, context.stream()) };
        match check(result, "launching a graph") {
            Err(Fault::OutOfMemory { .. }) => {
                // Not destroyed: what of it the device has begun to hold is not known.
                self.kept.pop();
                Ok(self.do_without())
            }
            launched => launched.map(|()| true),
        }
    }

    /// Records nothing for some steps: NVIDIA's driver takes memory for a graph, and has no time for that while it
    /// takes a process down.
    pub fn rest(&mut self) {
        self.steps_without = STEPS_BESIDE_A_DEATH;
    }

    /// The caller must launch by itself, for a while.
    fn do_without(&mut self) -> bool {
        self.steps_without = STEPS_WITHOUT;
        false
    }
}

fn record(
    context: &Context,
    pass: impl FnOnce() -> Result<(), Fault>,
) -> Result<sys::CUgraphExec, Fault> {
    let stream = context.stream();
    let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive and not being recorded.
    let result = unsafe { sys::cuStreamBeginCapture_v2(stream, mode) };
    check(result, "recording a graph")?;
    let passed = pass();
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: ends what was begun above, also when the pass failed; then the graph is null or
    // not used.
    let ended = unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) };
    passed?;
    check(ended, "recording a graph")?;
    // SAFETY: a graph that was just recorded; its executable form does not need it any more.
    unsafe {
        let result = sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0);
        check(sys::cuGraphDestroy(graph), "dropping a recording")?;
        check(result, "instantiating a graph")?;
    }
    Ok(exec)
}
