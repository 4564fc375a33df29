//! Transfer of a file's matrices to the arena: a chunk of rows at a time is copied to a staging buffer on the device,
//! and `repack.cu` packs it from there.

use super::context::{Context, StreamEvent};
use super::feed::{BUFFERS, Sink, feed};
use super::kernels::{Geometry, Kernel, Module, RepackArgs};
use super::load::Device;
use super::memory::{Arena, DevicePtr, Pinned, Purpose, download, upload};
use super::weights::{Matrix, TILE_ROWS, units};
use crate::model::{GgufFile, TensorView};
use std::io;
use std::thread::available_parallelism;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::reference::dequantize::grid::grid;

type Matrices<'a> = [(TensorView<'a>, Matrix)];

/// Threads that read the file, limited by the number of processors.
const MAX_READERS: usize = 12;
/// A chunk of a large model.
const MAX_CHUNK_BYTES: usize = 4 << 20;
/// All buffers together take at most this part of the matrices, except for longer rows.
const PARTS_OF_MATRICES: usize = 8;
/// Threads of a block of `repack.cu`.
const THREADS: u32 = 256;

/// Bytes of the file on the device that wait to be packed.
#[must_use]
pub fn staging_bytes(matrices: &Matrices<'_>) -> usize {
    let all: usize = matrices.iter().map(|(tensor, _)| tensor.bytes()).sum();
    let tile = |(tensor, _): &(TensorView<'_>, Matrix)| TILE_ROWS * tensor.row_bytes();
    let longest = matrices.iter().map(tile).max().unwrap_or_default();
    let share = all / (PARTS_OF_MATRICES * MAX_READERS * BUFFERS);
    share.min(MAX_CHUNK_BYTES).max(longest)
}

/// Packs all matrices, and calls `packed` with the bytes of the file in flight.
///
/// # Errors
/// If a weight is too large for F16 or a scale of MXFP4 larger than 2, the file is unreadable, or the driver fails.
pub fn pack(
    Device { context, module }: &Device,
    arena: &Arena,
    matrices: &Matrices<'_>,
    file: Option<&GgufFile>,
    packed: &mut dyn FnMut(u64),
) -> Result<(), Fault> {
    let chunk_bytes = staging_bytes(matrices);
    let chunks: Vec<_> = matrices
        .iter()
        .flat_map(|(tensor, matrix)| chunks_of(tensor, matrix, chunk_bytes))
        .collect();
    let bytes: Vec<_> = chunks.iter().map(|chunk| chunk.bytes).collect();
    let readers = available_parallelism().map_or(1, usize::from);
    let mut buffers = Vec::new();
    for _ in 0..readers.min(MAX_READERS).min(chunks.len()) {
        buffers.push([Pinned::new(chunk_bytes)?, Pinned::new(chunk_bytes)?]);
    }
    let read = |part: &[u8], into: &mut [u8]| match file {
        Some(file) => file.read_again(part, into),
        None => {
            into.copy_from_slice(part);
            io::Result::Ok(())
        }
    };
    let mut packer = Packer::new(context, module, arena, &chunks, chunk_bytes, packed)?;
    feed(&bytes, &read, buffers, &mut packer)?;
    let message = match packer.flags()? {
        0 => return Ok(()),
        flags if flags & 1 != 0 => "a weight is too large for F16",
        _ => "a scale of MXFP4 is larger than 2, which the kernels cannot multiply by",
    };
    Err(Fault::ModelLoad {
        message: message.to_owned(),
    })
}

/// Whole tiles of a matrix, consecutive in the file.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Chunk<'a> {
    bytes: &'a [u8],
    matrix: &'a Matrix,
    first_tile: usize,
    rows: usize,
}

fn chunks_of<'a>(
    tensor: &TensorView<'a>,
    matrix: &'a Matrix,
    chunk_bytes: usize,
) -> Vec<Chunk<'a>> {
    let row_bytes = tensor.row_bytes();
    let tiles_at_once = chunk_bytes / (TILE_ROWS * row_bytes);
    // Rows of a run are those of one expert, and whole tiles (`load`'s check of widths).
    let run = tensor.runs.map_or(matrix.rows, |runs| runs.rows);
    let chunk = |first: usize, end: usize| {
        let rows = (end - first).min(tiles_at_once * TILE_ROWS);
        let part = tensor.row_range(first, rows).expect("rows of one run");
        Chunk {
            bytes: part.data,
            matrix,
            first_tile: first / TILE_ROWS,
            rows,
        }
    };
    let runs = (0..matrix.rows).step_by(run);
    runs.flat_map(|start| {
        let end = start + run;
        let firsts = (start..end).step_by(tiles_at_once * TILE_ROWS);
        firsts.map(move |first| chunk(first, end))
    })
    .collect()
}

struct Packer<'a> {
    context: &'a Context,
    kernel: Kernel<RepackArgs>,
    arena: &'a Arena,
    chunks: &'a [Chunk<'a>],
    staging: Arena,
    flags: Arena,
    /// Quantization grids of the types that have one, and the offset of each.
    grids: Arena,
    grids_at: Vec<(TensorType, usize)>,
    /// Free events.
    events: Vec<StreamEvent>,
    packed: &'a mut dyn FnMut(u64),
}

impl<'a> Packer<'a> {
    fn new(
        context: &'a Context,
        module: &Module,
        arena: &'a Arena,
        chunks: &'a [Chunk<'a>],
        staging_bytes: usize,
        packed: &'a mut dyn FnMut(u64),
    ) -> Result<Self, Fault> {
        let flags = Arena::new(context, Purpose::Scratch, 4)?;
        flags.clear(context)?;
        let (all, grids_at) = grids_of(chunks.iter().map(|chunk| chunk.matrix.ty));
        let grids = Arena::new(
            context,
            Purpose::Scratch,
            size_of_val(&all[..]).max(2) as u64,
        )?;
        // SAFETY: the arena is as large; what is not pinned memory has been read when the call returns.
        unsafe { upload(context, grids.at(0, all.len()), &all) }?;
        Ok(Self {
            context,
            // SAFETY: repack.cu takes RepackArgs.
            kernel: unsafe { module.kernel("repack") }?,
            arena,
            chunks,
            staging: Arena::new(context, Purpose::Scratch, staging_bytes as u64)?,
            flags,
            grids,
            grids_at,
            events: Vec::new(),
            packed,
        })
    }

    /// Waits, then returns the flags of `repack.cu`, zero after success.
    fn flags(&self) -> Result<u32, Fault> {
        let mut flags = [0_u32];
        // SAFETY: one word.
        unsafe { download(self.context, &mut flags, self.flags.at(0, 1)) }?;
        Ok(flags[0])
    }
}

/// Grids of all these types, in one buffer, and the offset of each.
fn grids_of(types: impl Iterator<Item = TensorType>) -> (Vec<u16>, Vec<(TensorType, usize)>) {
    let (mut all, mut places) = (Vec::new(), Vec::new());
    for ty in types {
        let is_known = places.iter().any(|(known, _)| *known == ty);
        if !is_known && !grid(ty).is_empty() {
            places.push((ty, all.len()));
            all.extend_from_slice(grid(ty));
        }
    }
    (all, places)
}

impl Sink for Packer<'_> {
    type Copy = StreamEvent;

    fn send(&mut self, chunk: usize, bytes: &[u8]) -> Result<StreamEvent, Fault> {
        let Chunk {
            matrix,
            first_tile,
            rows,
            ..
        } = self.chunks[chunk];
        let tiles = rows.div_ceil(TILE_ROWS);
        let offset = matrix.offset + (first_tile * matrix.tile_bytes()) as u64;
        let place = self.grids_at.iter().find(|(ty, _)| *ty == matrix.ty);
        let grid = place.map_or(DevicePtr::NULL, |(ty, first)| {
            self.grids.at(2 * *first as u64, grid(*ty).len())
        });
        let arguments = RepackArgs {
            grid,
            file: self.staging.at(0, bytes.len()),
            packed: self.arena.at(offset, tiles * matrix.tile_bytes()),
            flags: self.flags.at(0, 1),
            row_bytes: (bytes.len() / rows) as u64,
            ty: matrix.ty as i32,
            rows: rows as i32,
            cols: matrix.cols as i32,
            units: units(matrix.cols) as i32,
        };
        let warps = tiles * units(matrix.cols);
        let geometry = Geometry::line(warps.div_ceil(THREADS as usize / 32), THREADS);
        let copied = match self.events.pop() {
            Some(event) => event,
            None => StreamEvent::new()?,
        };
        // SAFETY: staging and the matrix's place are as large as the slices taken of them; stream order puts
        // a copy after the kernel that read the previous one; the buffer stays until the wait for `copied`.
        let begun = unsafe {
            upload(self.context, arguments.file, bytes)
                .and_then(|()| copied.record(self.context))
                .and_then(|()| self.kernel.launch(self.context, geometry, &arguments))
        };
        if begun.is_err() {
            // The copy may be in flight, and the caller drops the buffer. The first error is returned.
            let _ = self.context.synchronize("copying the weights");
        }
        begun?;
        (self.packed)(bytes.len() as u64);
        Ok(copied)
    }

    fn wait(&mut self, copied: StreamEvent) -> Result<(), Fault> {
        copied.wait("copying the weights")?;
        self.events.push(copied);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Runs;

    fn tensor(rows: usize, cols: usize, data: &[u8]) -> (TensorView<'_>, Matrix) {
        let ty = TensorType::F16;
        let view = TensorView {
            name: "a",
            ty,
            rows,
            cols,
            data: &data[..rows * cols * 2],
            runs: None,
        };
        let matrix = Matrix {
            ty,
            rows,
            cols,
            offset: 0,
        };
        (view, matrix)
    }

    #[test]
    fn chunks_are_whole_tiles_that_cover_every_row_once() {
        let data = vec![0; 1 << 20];
        for rows in [1, 8, 9, 100] {
            let matrices = [tensor(rows, 128, &data)];
            for chunk_bytes in [2048, 2049, 5000, 1 << 20] {
                let (view, matrix) = &matrices[0];
                let chunks = chunks_of(view, matrix, chunk_bytes);
                let mut row = 0;
                for chunk in &chunks {
                    assert_eq!(chunk.first_tile * TILE_ROWS, row);
                    assert_eq!(chunk.bytes.len(), chunk.rows * 256);
                    assert!(chunk.bytes.len() <= chunk_bytes);
                    row += chunk.rows;
                }
                assert_eq!(row, rows, "{chunk_bytes}");
            }
        }
    }

    #[test]
    fn chunks_of_fused_experts_are_rows_of_one_run() {
        let (run, experts, row_bytes) = (40, 3, 256);
        // In the file each run of gate is followed by one of up.
        let numbers = 0..(2 * run * experts * row_bytes) as u32 / 4;
        let file: Vec<u8> = numbers.flat_map(u32::to_ne_bytes).collect();
        let (view, matrix) = tensor(run * experts, 128, &file);
        let stride = 2 * run * row_bytes;
        let fused = TensorView {
            data: &file[..stride * (experts - 1) + run * row_bytes],
            runs: Some(Runs { rows: run, stride }),
            ..view
        };
        for chunk_bytes in [2048, 5000, 1 << 20] {
            let mut row = 0;
            for chunk in chunks_of(&fused, &matrix, chunk_bytes) {
                assert_eq!(chunk.first_tile * TILE_ROWS, row);
                let from = row / run * stride + row % run * row_bytes;
                assert_eq!(chunk.bytes, &file[from..from + chunk.rows * row_bytes]);
                row += chunk.rows;
            }
            assert_eq!(row, run * experts, "{chunk_bytes}");
        }
    }

    #[test]
    fn each_type_s_grid_is_there_once() {
        let (f16, xs, s) = (TensorType::F16, TensorType::IQ2_XS, TensorType::IQ3_S);
        let (all, places) = grids_of([f16, xs, s, xs].into_iter());
        assert_eq!(places, [(xs, 0), (s, grid(xs).len())]);
        assert_eq!(all, [grid(xs), grid(s)].concat());
        assert!(grids_of([f16].into_iter()).0.is_empty());
    }

    #[test]
    fn buffers_take_an_eighth_of_a_large_file_at_most_and_hold_the_longest_rows_of_any() {
        let data = vec![0; 8 << 20];
        let large = [tensor(1 << 14, 128, &data), tensor(1 << 14, 128, &data)];
        let all: usize = large.iter().map(|(tensor, _)| tensor.data.len()).sum();
        assert!(staging_bytes(&large) * MAX_READERS * BUFFERS <= all / 8);
        let long = [tensor(8, 1 << 16, &data)];
        assert_eq!(staging_bytes(&long), 8 * (1 << 16) * 2);
    }
}
