//! Graphs: recorded work of a stream, to be launched any number of times.
//!
//! A graph runs in the order of its recording, and takes no memory of the device.

use super::errors::{HEALTH, Outcome, Place, answer, give};
use super::handles::{Handles, pointer};
use super::streams::{Stream, Work};
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode};
use std::ffi::c_ulonglong;
use std::sync::Arc;

type Graph = Vec<Work>;

static RECORDED: Handles<Graph> = Handles::new();
static EXECUTABLE: Handles<Graph> = Handles::new();

/// Begins a recording. No mode restricts other threads.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(
    stream: CUstream,
    _mode: CUstreamCaptureMode,
) -> CUresult {
    answer(Stream::of(stream).and_then(|stream| stream.begin_recording()))
}

/// Ends a recording, and makes a graph of it.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: CUstream, graph: Place<'_, CUgraph>) -> CUresult {
    answer(Stream::of(stream).and_then(|stream| {
        let recorded = stream.end_recording()?;
        give(graph, pointer(RECORDED.add(Arc::new(recorded))))
    }))
}

/// Instantiates a graph. The instance outlives the graph.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(
    executable: Place<'_, CUgraphExec>,
    graph: CUgraph,
    _flags: c_ulonglong,
) -> CUresult {
    answer(HEALTH.check().and_then(|()| {
        let graph = RECORDED.get(graph.addr())?;
        give(executable, pointer(EXECUTABLE.add(graph)))
    }))
}

/// Uploads nothing: a graph needs no preparation.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) -> CUresult {
    answer(known(executable, stream).map(drop))
}

/// Launches a graph into the stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) -> CUresult {
    answer(known(executable, stream).and_then(|(graph, stream)| {
        let mut works = graph.iter();
        works.try_for_each(|work| stream.add(Arc::clone(work)))
    }))
}

fn known(executable: CUgraphExec, stream: CUstream) -> Outcome<(Arc<Graph>, Arc<Stream>)> {
    HEALTH.check()?;
    Ok((EXECUTABLE.get(executable.addr())?, Stream::of(stream)?))
}

/// Destroys a graph.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    answer(RECORDED.remove(graph.addr()).map(drop))
}

/// Destroys an instance. Its launches in progress go on.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: CUgraphExec) -> CUresult {
    answer(EXECUTABLE.remove(executable.addr()).map(drop))
}

#[cfg(test)]
mod tests;
