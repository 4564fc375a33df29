//! Heads of attention, of which sliding-window layers may have others than layers with full attention.

use super::architecture::Recurrence;
use super::config::Keys;
use super::error::ModelError;
use super::gguf::Value;
use super::positions::WindowedLayers;

/// Heads of a layer with attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Heads of queries.
    pub count: usize,
    /// Heads of keys and values.
    pub kv_count: usize,
    /// Values of a head.
    pub dim: usize,
}

impl Heads {
    /// Width of all heads of queries.
    #[must_use]
    pub fn width(&self) -> usize {
        self.count * self.dim
    }

    /// Width of all heads of keys, and of values.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_count * self.dim
    }

    /// Heads of queries for each head of keys and values.
    #[must_use]
    pub fn group(&self) -> usize {
        self.count / self.kv_count
    }
}

/// Heads of layers with full attention, and of sliding-window layers if theirs differ.
pub(super) struct HeadKinds {
    pub(super) full: Heads,
    pub(super) sliding: Option<Heads>,
}

/// # Errors
/// If a key is missing or invalid, or requires an unsupported feature.
pub(super) fn read(
    keys: &Keys<'_, '_>,
    n_embd: usize,
    n_layers: usize,
    windows: &WindowedLayers,
) -> Result<HeadKinds, ModelError> {
    let count = keys.positive("attention.head_count")?;
    let own = keys.architecture.conventions().windows;
    let have_own = own.is_some_and(|windows| windows.have_heads);
    let [full_kv, sliding_kv] = match have_own {
        true => kv_counts_by_kind(keys, (count, n_layers), windows)?,
        false => [kv_count(keys)?.unwrap_or(count); 2],
    };
    for kv_count in [full_kv, sliding_kv] {
        if count % kv_count != 0 {
            let message = format!("{count} heads cannot share {kv_count} of keys and values");
            return Err(ModelError::bad_value(keys.key(KV_COUNT), message));
        }
    }
    let full = Heads {
        count,
        kv_count: full_kv,
        dim: head_dim(keys, n_embd, count)?,
    };
    let sliding = Heads {
        kv_count: sliding_kv,
        dim: match have_own {
            true => head_dim_of_windows(keys)?,
            false => full.dim,
        },
        ..full
    };
    Ok(HeadKinds {
        full,
        // Windows are in the first layer, or in none.
        sliding: (sliding != full && windows.is_in(0)).then_some(sliding),
    })
}

pub(super) const KV_COUNT: &str = "attention.head_count_kv";

/// Heads of keys and values of all layers with attention.
fn kv_count(keys: &Keys<'_, '_>) -> Result<Option<usize>, ModelError> {
    match keys.architecture.conventions().recurrence {
        Recurrence::ShortConv | Recurrence::Mamba => keys.optional_positive_besides_zeros(KV_COUNT),
        Recurrence::None | Recurrence::DeltaNet(_) => keys.optional_positive(KV_COUNT),
    }
}

/// Heads of keys and values: of layers with full attention, and of sliding-window layers.
fn kv_counts_by_kind(
    keys: &Keys<'_, '_>,
    (count, n_layers): (usize, usize),
    windows: &WindowedLayers,
) -> Result<[usize; 2], ModelError> {
    let key = keys.key(KV_COUNT);
    let Some(Value::Array(array)) = keys.header.get(&key) else {
        return Ok([keys.optional_positive(KV_COUNT)?.unwrap_or(count); 2]);
    };
    if array.len != n_layers {
        let message = format!("{} entries for {n_layers} layers", array.len);
        return Err(ModelError::bad_value(key, message));
    }
    let mut kinds = [None; 2];
    for (layer, value) in array.values().enumerate() {
        let value = value.as_u64().and_then(|value| u32::try_from(value).ok());
        let value = match value {
            Some(0) | None => return Err(ModelError::bad_value(key, "must be positive numbers")),
            Some(value) => value as usize,
        };
        let kind = &mut kinds[usize::from(windows.is_in(layer))];
        if *kind.get_or_insert(value) != value {
            let feature = "a value that differs between layers of one kind";
            return Err(ModelError::unsupported(key, feature));
        }
    }
    let any = kinds[0].or(kinds[1]).unwrap_or(count);
    Ok(kinds.map(|kind| kind.unwrap_or(any)))
}

fn head_dim(keys: &Keys<'_, '_>, n_embd: usize, n_heads: usize) -> Result<usize, ModelError> {
    let key_length = keys.optional_positive("attention.key_length")?;
    let value_length = keys.optional_positive("attention.value_length")?;
    let even_split = n_embd.is_multiple_of(n_heads).then(|| n_embd / n_heads);
    let head_dim = key_length.or(even_split).ok_or_else(|| {
        let message = format!("{n_embd} values cannot be split over {n_heads} heads");
        ModelError::bad_value(keys.key("attention.head_count"), message)
    })?;
    if value_length.or(even_split) != Some(head_dim) {
        return Err(other_values(keys, "attention.value_length"));
    }
    Ok(head_dim)
}

fn head_dim_of_windows(keys: &Keys<'_, '_>) -> Result<usize, ModelError> {
    const VALUES: &str = "attention.value_length_swa";
    let head_dim = keys.positive("attention.key_length_swa")?;
    if keys.positive(VALUES)? != head_dim {
        return Err(other_values(keys, VALUES));
    }
    Ok(head_dim)
}

fn other_values(keys: &Keys<'_, '_>, name: &str) -> ModelError {
    ModelError::unsupported(keys.key(name), "values of another length than keys")
}
