//! Graphs: what was put into a stream while that was recorded, to be done as often as wanted.
//!
//! They are in stream order, as they were recorded, and take no memory of the device.

use super::errors::{HEALTH, Outcome, Place, answer, give};
use super::handles::{Handles, pointer};
use super::streams::{Stream, Work};
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode};
use std::ffi::c_ulonglong;
use std::sync::Arc;

type Graph = Vec<Work>;

static RECORDED: Handles<Graph> = Handles::new();
static EXECUTABLE: Handles<Graph> = Handles::new();

/// In each mode, other threads may do what they like.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(
    stream: CUstream,
    _mode: CUstreamCaptureMode,
) -> CUresult {
    answer(Stream::of(stream).and_then(|stream| stream.begin_recording()))
}

/// Makes a graph of what was recorded.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: CUstream, graph: Place<'_, CUgraph>) -> CUresult {
    answer(Stream::of(stream).and_then(|stream| {
        let recorded = stream.end_recording()?;
        give(graph, pointer(RECORDED.add(Arc::new(recorded))))
    }))
}

/// What is launched of a graph outlives it.
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

/// A graph is where it is needed from the beginning.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) -> CUresult {
    answer(known(executable, stream).map(drop))
}

/// Puts all of it into the stream.
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

/// Lets go of a recording.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    answer(RECORDED.remove(graph.addr()).map(drop))
}

/// Launches of it that are under way go on.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: CUgraphExec) -> CUresult {
    answer(EXECUTABLE.remove(executable.addr()).map(drop))
}

#[cfg(test)]
mod tests;
