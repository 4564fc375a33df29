//! CUDA graphs of decode steps of larger batches and of steps with drafts, recorded once and launched as a whole.
//!
//! The launches of a step take longer than their execution. While a batch continues to decode, its launches
//! are equal from step to step: buffers have fixed addresses, and all changes (tokens,
//! positions, page tables) are in memory. The launches depend only on the [`GraphKey`]; a step
//! is recorded when a key occurs for the second time among the last few steps without a graph. Its graph is instantiated
//! on the [driver thread](super::driver_thread), and kept. The driver's memory for a graph is the difference of free
//! memory before and after; dropped graphs leave theirs to later ones.
//!
//! Without a graph (not ready, or no memory for one because another process took it all), the step makes its launches
//! one by one: the same bits, later.

use super::context::{Context, check};
use super::driver_thread::DriverThread;
use super::memory::Purpose;
use super::mixers::MixerGrids;
use super::plan::Plan;
use cudarc::driver::sys::{self, CUstreamCaptureMode as CaptureMode};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError};
use worker_orcd_ipc::Fault;

/// Maximum number of graphs; batches that lose a sequence now and then leave their old ones behind.
const MAX_GRAPHS: usize = 64;

/// Steps before the next attempt at a graph after a lack of memory: an attempt takes longer than
/// a step.
const STEPS_WITHOUT: u32 = 1000;

/// Number of keys that are remembered until they occur again. The number of drafts, and with it the key, changes from
/// step to step.
const SEEN_KEYS: usize = 8;

/// Sizes that determine the grids of a step's launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphKey {
    rows: usize,
    /// A delta net has blocks for each of them.
    sequences: usize,
    mixers: MixerGrids,
}

impl GraphKey {
    /// `None` unless each row draws, of sequences that decode with or without drafts, within the rows of logits that
    /// the head holds.
    #[must_use]
    pub fn of(plan: &Plan<'_>, head_rows: usize, mixers: MixerGrids) -> Option<Self> {
        let rows = plan.rows.len();
        let decodes = plan.drawing.len() == rows && !plan.mixers.has_wide_tiles();
        (decodes && rows <= head_rows).then_some(Self {
            rows,
            sequences: plan.sequences.len(),
            mixers,
        })
    }
}

/// Recording of a step.
#[derive(Debug)]
pub struct Recording(sys::CUgraph);

// SAFETY: a graph belongs to a context, not to a thread, and has one owner.
unsafe impl Send for Recording {}

/// Executable form of a recording.
#[derive(Debug)]
pub struct Executable(sys::CUgraphExec);

// SAFETY: as for a recording.
unsafe impl Send for Executable {}

impl Executable {
    /// # Errors
    /// If NVIDIA's driver returns an error.
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
    /// Ordered by use, the latest last.
    kept: Vec<(GraphKey, Executable)>,
    coming: Option<(GraphKey, Receiver<Result<Executable, Fault>>)>,
    /// Keys of steps that were not launched as graphs, the latest last.
    seen: VecDeque<GraphKey>,
    /// Steps without an attempt to record.
    steps_without: u32,
}

impl Graphs {
    /// Every step makes its launches one by one.
    #[must_use]
    pub fn none() -> Self {
        Self {
            steps_without: u32::MAX,
            ..Self::default()
        }
    }

    /// Launches the graph of this shape. Returns false without a graph: the caller makes the launches itself. A shape
    /// that was seen before is recorded by `pass`.
    ///
    /// # Errors
    /// If recording or launching fails.
    pub fn launch(
        &mut self,
        context: &Context,
        driver_thread: &DriverThread,
        key: GraphKey,
        pass: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        self.take_in(context, driver_thread)?;
        let Some(at) = self.kept.iter().position(|(of, _)| *of == key) else {
            let was_seen = self.sees(key);
            if was_seen && self.steps_without == 0 && self.coming.is_none() {
                let recording = record(context, pass)?;
                self.coming = Some((key, driver_thread.instantiate(recording)));
            }
            self.steps_without = self.steps_without.saturating_sub(1);
            return Ok(false);
        };
        let graph = self.kept.remove(at);
        // SAFETY: the graph was instantiated in this context.
        let result = unsafe { sys::cuGraphLaunch(graph.1.0, context.stream()) };
        match check(result, "launching a graph") {
            Err(Fault::OutOfMemory { .. }) => {
                // Not destroyed: the state of its partial upload to the device is unknown.
                self.steps_without = STEPS_WITHOUT;
                Ok(false)
            }
            launched => {
                self.kept.push(graph);
                launched.map(|()| true)
            }
        }
    }

    /// Number of recorded steps.
    #[must_use]
    pub fn count(&self) -> usize {
        self.kept.len()
    }

    /// Remembers the key of a step without a graph. True if it was remembered already.
    fn sees(&mut self, key: GraphKey) -> bool {
        let before = self.seen.iter().position(|it| *it == key);
        if let Some(at) = before {
            self.seen.remove(at);
        } else if self.seen.len() == SEEN_KEYS {
            self.seen.pop_front();
        }
        self.seen.push_back(key);
        before.is_some()
    }

    /// Takes over the ordered graph, if it is ready.
    fn take_in(&mut self, context: &Context, driver_thread: &DriverThread) -> Result<(), Fault> {
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
            driver_thread.drop_executable(self.kept.remove(0).1);
        }
        Ok(())
    }
}

fn record(context: &Context, pass: impl FnOnce() -> Result<(), Fault>) -> Result<Recording, Fault> {
    let stream = context.stream();
    // Driver calls of other threads in the meantime are not recorded.
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

/// Instantiates a recording, and uploads it to the device.
///
/// # Errors
/// [`Fault::OutOfMemory`] if there is no memory for it, or another error of NVIDIA's driver.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rows: usize) -> GraphKey {
        GraphKey {
            rows,
            sequences: 1,
            mixers: MixerGrids::default(),
        }
    }

    #[test]
    fn a_key_is_remembered_until_enough_others_have_come() {
        let mut graphs = Graphs::default();
        let order = [16, 1, 8, 16, 1, 2].map(|rows| graphs.sees(key(rows)));
        assert_eq!(order, [false, false, false, true, true, false]);
        for rows in 20..20 + SEEN_KEYS {
            assert!(!graphs.sees(key(rows)));
        }
        assert!(!graphs.sees(key(16)));
    }
}
