//! Tables by position, stored after the weights: cos and sin of RoPE's pairs, and the temperature of queries.

use crate::device::common::manifest::WeightsLayout;
use crate::device::cuda::context::Context;
use crate::device::cuda::memory::{ALIGNMENT, Arena, DevicePtr, Plain, upload};
use crate::model::ModelConfig;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::reference::rope::Rope;

/// Maximum number of rotations of a model ([`ModelConfig::ropes`]).
const MAX_ROPES: usize = 2;
/// Names in a manifest, distinct from all tensors of a file.
const ROPES: [&str; MAX_ROPES] = ["rope table", "rope table of windows"];
const TEMPERATURE: &str = "temperature of queries";

/// Tables of a model, and their offsets.
#[derive(Debug)]
pub struct Tables {
    ropes: Vec<Table<[f32; 2]>>,
    temperature: Option<Table<f32>>,
}

#[derive(Debug)]
struct Table<T> {
    values: Vec<T>,
    offset: u64,
}

/// Tables on the device.
#[derive(Debug, Clone, Copy)]
pub struct PlacedTables {
    /// cos and sin of each rotation, `[positions, pairs]`; null without a rotation.
    pub ropes: [DevicePtr<[f32; 2]>; MAX_ROPES],
    /// Factors of queries, `[positions]`; null for models without a temperature.
    pub temperature: DevicePtr<f32>,
}

impl Tables {
    pub fn place(
        config: &ModelConfig,
        positions: usize,
        layout: &mut WeightsLayout<ALIGNMENT>,
    ) -> Self {
        let temperature = config.positions.temperature.map(|temperature| {
            let positions = 0..positions as u32;
            positions.map(|position| temperature.at(position)).collect()
        });
        Self {
            ropes: config
                .ropes()
                .zip(ROPES)
                .map(|(rope, name)| Table::place(turns(rope, positions), name, 2, layout))
                .collect(),
            temperature: temperature.map(|it| Table::place(it, TEMPERATURE, 1, layout)),
        }
    }

    /// # Errors
    /// If a copy fails.
    pub fn upload(&self, context: &Context, arena: &Arena) -> Result<(), Fault> {
        for table in &self.ropes {
            table.upload(context, arena)?;
        }
        match &self.temperature {
            Some(table) => table.upload(context, arena),
            None => Ok(()),
        }
    }

    #[must_use]
    pub fn on_device(&self, arena: &Arena) -> PlacedTables {
        let temperature = self.temperature.as_ref();
        let mut ropes = [DevicePtr::NULL; MAX_ROPES];
        for (place, table) in ropes.iter_mut().zip(&self.ropes) {
            *place = table.on_device(arena);
        }
        PlacedTables {
            ropes,
            temperature: temperature.map_or(DevicePtr::NULL, |table| table.on_device(arena)),
        }
    }
}

impl<T: Plain> Table<T> {
    fn place(
        values: Vec<T>,
        name: &str,
        floats: u64,
        layout: &mut WeightsLayout<ALIGNMENT>,
    ) -> Self {
        let (rows, bytes) = (values.len() as u64, size_of_val(&*values) as u64);
        let offset = layout.place_as(name, "F32", rows, floats, bytes);
        Self { values, offset }
    }

    fn on_device(&self, arena: &Arena) -> DevicePtr<T> {
        arena.at(self.offset, self.values.len())
    }

    fn upload(&self, context: &Context, arena: &Arena) -> Result<(), Fault> {
        // SAFETY: the place that was made for the table; pageable memory has been read when this returns.
        unsafe { upload(context, self.on_device(arena), &self.values) }
    }
}

/// cos and sin of every pair at every position.
fn turns(rope: &Rope, positions: usize) -> Vec<[f32; 2]> {
    let frequencies: Vec<f64> = (0..rope.dims / 2).map(|i| rope.frequency(i)).collect();
    (0..positions as u32)
        .flat_map(|position| {
            frequencies
                .iter()
                .map(move |&frequency| rope.turn(position, frequency).into())
        })
        .collect()
}
