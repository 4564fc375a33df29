//! Decode steps of larger batches, recorded once and launched as a whole.
//!
//! The launches of a step take longer to make than to run. While a batch goes on decoding, its launches
//! are the same from step to step: buffers have fixed addresses, and what changes (tokens,
//! positions, page tables) lies in memory. What the launches depend on is the [`GraphKey`]; a step
//! is recorded when a key is seen for the second time in a row. Its graph is made executable [aside](super::aside), and
//! kept. What NVIDIA's driver takes for it is seen in what is free before and after; dropped graphs leave it to later
//! ones.
//!
//! As long as it is not there, and where there is no memory for one (a neighbour took it all), the launches are made one
//! by one: the same bits, later.

use super::aside::Aside;
use super::context::{Context, check};
use super::memory::Purpose;
use super::plan::Plan;
use cudarc::driver::sys::{self, CUstreamCaptureMode as CaptureMode};
use std::sync::mpsc::{Receiver, TryRecvError};
use worker_orcd_ipc::Fault;

/// Graphs kept at a time; batches that lose a sequence now and then leave their old ones behind.
const MAX_GRAPHS: usize = 64;

/// Steps until a graph is tried again, when there was no memory for one: trying takes longer than
/// a step.
const STEPS_WITHOUT: u32 = 1000;

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

/// A step as it was recorded.
#[derive(Debug)]
pub struct Recording(sys::CUgraph);

// SAFETY: a graph belongs to a context, not to a thread, and has one owner.
unsafe impl Send for Recording {}

/// A recording that can be launched.
#[derive(Debug)]
pub struct Executable(sys::CUgraphExec);

// SAFETY: as for a recording.
unsafe impl Send for Executable {}

impl Executable {
    /// # Errors
    /// When NVIDIA's driver refuses.
    pub fn destroy(self, context: &Context) -> Result<(), Fault> {
        context.enter()?;
        // SAFETY: every launch of it is over.
        check(
            unsafe { sys::cuGraphExecDestroy(self.0) },
            "dropping a graph",
        )
    }
}

#[derive(Debug, Default)]
pub struct Graphs {
    /// The one used last is the last.
    kept: Vec<(GraphKey, Executable)>,
    coming: Option<(GraphKey, Receiver<Result<Executable, Fault>>)>,
    /// Key of the step before, when it was not launched as a graph.
    seen: Option<GraphKey>,
    /// Steps for which no graph is recorded.
    steps_without: u32,
}

impl Graphs {
    /// Launches the graph of this shape. False when there is none and the caller must launch by itself; if the shape was
    /// seen before, it is recorded by `pass`.
    ///
    /// # Errors
    /// When recording or launching fails.
    pub fn launch(
        &mut self,
        context: &Context,
        aside: &Aside,
        key: GraphKey,
        pass: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        self.take_in(context, aside)?;
        let Some(at) = self.kept.iter().position(|(of, _)| *of == key) else {
            if self.seen == Some(key) && self.steps_without == 0 && self.coming.is_none() {
                let recording = record(context, pass)?;
                self.coming = Some((key, aside.instantiate(recording)));
            }
            self.seen = Some(key);
            self.steps_without = self.steps_without.saturating_sub(1);
            return Ok(false);
        };
        let graph = self.kept.remove(at);
        // SAFETY: the graph was instantiated in this context.
        let result = unsafe { sys::cuGraphLaunch(graph.1.0, context.stream()) };
        match check(result, "launching a graph") {
            Err(Fault::OutOfMemory { .. }) => {
                // Not destroyed: what of it the device has begun to hold is not known.
                self.steps_without = STEPS_WITHOUT;
                Ok(false)
            }
            launched => {
                self.kept.push(graph);
                launched.map(|()| true)
            }
        }
    }

    /// Takes in the graph that was ordered, if it is there by now.
    fn take_in(&mut self, context: &Context, aside: &Aside) -> Result<(), Fault> {
        let Some((key, coming)) = &self.coming else {
            return Ok(());
        };
        let made = match coming.try_recv() {
            Ok(made) => made,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => Err(Fault::Io {
                message: "the thread that makes graphs has ended".to_owned(),
            }),
        };
        let key = *key;
        self.coming = None;
        match made {
            Err(Fault::OutOfMemory { .. }) => self.steps_without = STEPS_WITHOUT,
            executable => self.kept.push((key, executable?)),
        }
        if self.kept.len() > MAX_GRAPHS {
            context.synchronize("dropping a graph")?;
            aside.drop_executable(self.kept.remove(0).1);
        }
        Ok(())
    }
}

fn record(context: &Context, pass: impl FnOnce() -> Result<(), Fault>) -> Result<Recording, Fault> {
    let stream = context.stream();
    // What other threads ask of NVIDIA's driver meanwhile is no part of it.
    let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive and not being recorded.
    let result = unsafe { sys::cuStreamBeginCapture_v2(stream, mode) };
    check(result, "recording a graph")?;
    let passed = pass();
    let mut graph = std::ptr::null_mut();
    // SAFETY: ends what was begun above, also when the pass failed; then the graph is null or
    // not used.
    let ended = unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) };
    passed?;
    check(ended, "recording a graph")?;
    Ok(Recording(graph))
}

/// Makes a recording executable, and brings it to the device.
///
/// # Errors
/// [`Fault::OutOfMemory`] when there is no memory for it, or what NVIDIA's driver says.
pub fn instantiate(context: &Context, Recording(graph): Recording) -> Result<Executable, Fault> {
    let (before, _) = context.memory()?;
    let mut exec = std::ptr::null_mut();
    // SAFETY: a graph that was just recorded; its executable form does not need it any more. The stream is this thread's.
    unsafe {
        let result = sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0);
        check(sys::cuGraphDestroy(graph), "dropping a recording")?;
        check(result, "instantiating a graph")?;
        let uploaded = sys::cuGraphUpload(exec, context.stream());
        check(uploaded, "bringing a graph to the device")?;
    }
    context.synchronize("bringing a graph to the device")?;
    let (after, _) = context.memory()?;
    let grown = before.saturating_sub(after);
    context.ledger().add(Purpose::Graphs, grown);
    Ok(Executable(exec))
}
