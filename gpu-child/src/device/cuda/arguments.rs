//! Arguments of the kernels, as `kernels/cuda` declares them ([`layout!`]).

use super::headers::{constant, layout};
use super::memory::DevicePtr;
use super::tensor_map::TensorMap;

/// Pages of one launch.
pub const PAGES_AT_ONCE: usize = constant!("kv_pages.cu", PAGES_AT_ONCE);
/// Positions after which a page may be sealed.
pub const SEAL_EVERY: usize = constant!("kv_pages.cu", SEAL_EVERY);
/// What a page holds.
pub const KEYS_OF_FULL: u8 = constant!("kv_pages.cu", KEYS_OF_WHOLE) as u8;
pub const KEYS_OF_SLIDING: u8 = constant!("kv_pages.cu", KEYS_OF_NEAR) as u8;
pub const STATES: u8 = constant!("kv_pages.cu", STATES) as u8;
/// Inputs of a step, each with its own destination.
pub const INPUTS: usize = constant!("scatter_inputs.cu", INPUTS);

layout! {
    pub struct RepackArgs in "repack.cu" {
        pub file: DevicePtr<u8>,
        pub packed: DevicePtr<u8>,
        pub flags: DevicePtr<u32>,
        pub grid: DevicePtr<u16>,
        pub row_bytes: u64,
        pub ty: i32,
        pub rows: i32,
        pub cols: i32,
        pub units: i32,
    }

    /// A token of the batch.
    #[derive(PartialEq, Eq)]
    pub struct Row in "common.cuh" {
        pub token: i32,
        pub position: i32,
        pub table: i32,
        pub unused: i32,
    }

    pub struct EmbedArgs in "embed.cuh" {
        pub table: DevicePtr<u8>,
        pub rows: DevicePtr<Row>,
        pub x: DevicePtr<f32>,
        pub ty: i32,
        pub units: i32,
        pub cols: i32,
        pub scale: f32,
    }

    /// Bound of the absolute outputs of a weight.
    pub struct BoundArgs in "bound.cu" {
        pub parts: [Part; 2],
        pub norm: DevicePtr<f32>,
        pub squares: DevicePtr<u32>,
        pub n_parts: i32,
        pub units: i32,
        pub cols: i32,
        pub unused: i32,
    }

    pub struct RowArgs in "norm.cuh" {
        pub input: DevicePtr<f32>,
        pub gather: DevicePtr<i32>,
        pub weight: DevicePtr<f32>,
        pub plain: DevicePtr<f32>,
        pub out: DevicePtr<u16>,
        pub scale: DevicePtr<f32>,
        pub cols: i32,
        pub units: i32,
        pub in_stride: i32,
        pub eps: f32,
        pub groups: i32,
        pub rows: i32,
        /// Stage that is posted on the board when the kernel begins
        /// ([`Stage`](super::board::Stage)).
        pub stage: u32,
        pub activation: i32,
        pub board: DevicePtr<u32>,
        pub copy: DevicePtr<u16>,
        pub copy_scale: DevicePtr<f32>,
        pub up: f32,
        pub factor: f32,
    }

    pub struct GatedRowsArgs in "gated_rows.cu" {
        pub rows: RowArgs,
        pub gates: DevicePtr<f32>,
        pub stride: i32,
        pub head_dim: i32,
        pub head_stride: i32,
        pub unused: i32,
    }

    pub struct Part in "common.cuh" {
        pub weight: DevicePtr<u8>,
        pub bias: DevicePtr<f32>,
        pub rows: i32,
        pub tiles: i32,
        pub column: i32,
        pub ty: i32,
    }

    pub struct MatmulArgs in "matmul.cuh" {
        pub parts: [Part; 3],
        pub n_parts: i32,
        pub rows: i32,
        pub units: i32,
        pub out_stride: i32,
        pub add: i32,
        pub scale_of_all: f32,
        pub x: DevicePtr<u16>,
        pub scale: DevicePtr<f32>,
        pub out: DevicePtr<f32>,
    }

    pub struct WideArgs in "matmul_wgmma.cuh" {
        pub matmul: MatmulArgs,
        pub stages: i32,
        pub cluster_sums: i32,
        pub paired: i32,
        pub shares: i32,
        pub up: f32,
        pub out_units: i32,
        pub weights: [TensorMap; 3],
    }

    pub struct SoftcapArgs in "softcap.cu" {
        pub logits: DevicePtr<f32>,
        pub count: u64,
        pub cap: f32,
        pub scale: f32,
    }

    pub struct ArgmaxArgs in "argmax.cuh" {
        pub logits: DevicePtr<f32>,
        pub best: DevicePtr<u64>,
        pub vocab: i32,
    }

    pub struct ChecksumArgs in "checksum.cu" {
        pub words: DevicePtr<u8>,
        pub sum: DevicePtr<u64>,
        pub pairs: u64,
        pub first: u64,
    }

    /// Lengths in units of 16 bytes.
    pub struct PageShape in "kv_pages.cu" {
        pub page: u32,
        pub half_layer: [u32; STATES as usize],
        pub head: [u32; STATES as usize],
        pub state_unit: u32,
        pub state_rows: u32,
    }

    pub struct SealPagesArgs in "kv_pages.cu" {
        pub pages: DevicePtr<u8>,
        pub sums: DevicePtr<u64>,
        pub shape: PageShape,
        pub list: [i32; PAGES_AT_ONCE],
        pub tokens: [i32; PAGES_AT_ONCE],
        pub kinds: [u8; PAGES_AT_ONCE],
    }

    pub struct AdoptPagesArgs in "kv_pages.cu" {
        pub theirs: DevicePtr<u8>,
        pub ours: DevicePtr<u8>,
        pub sums: DevicePtr<u64>,
        pub shape: PageShape,
        pub from: [i32; PAGES_AT_ONCE],
        pub to: [i32; PAGES_AT_ONCE],
        pub tokens: [i32; PAGES_AT_ONCE],
        pub kinds: [u8; PAGES_AT_ONCE],
    }

    pub struct ScatterInputsArgs in "scatter_inputs.cu" {
        pub from: DevicePtr<i32>,
        pub to: [DevicePtr<i32>; INPUTS],
        pub words: [i32; INPUTS],
        pub before: DrawnTokens,
        pub board: DevicePtr<u32>,
        pub step: u32,
    }

    /// Destination of the tokens that a step's rows drew.
    pub struct DrawnTokens in "drawn_tokens.cuh" {
        best: DevicePtr<u64>,
        broken: DevicePtr<u32>,
        parts: i32,
    }

    pub struct TokensToHostArgs in "drawn_tokens.cuh" {
        pub drawn: DrawnTokens,
        pub out: DevicePtr<u32>,
        pub rows: i32,
    }

    pub struct SampleRow in "sample.cu" {
        pub top_p: u64,
        pub number: u64,
        pub rate: f32,
        pub min_p: f32,
        pub repetition: f32,
        pub frequency: f32,
        pub presence: f32,
        pub row: i32,
        pub top_k: i32,
        pub history: i32,
        pub prompt: i32,
        pub length: i32,
        pub newest: i32,
        pub mask: i32,
        pub biases: i32,
        pub unused: i32,
    }

    pub struct SampleArgs in "sample.cu" {
        pub logits: DevicePtr<f32>,
        pub rows: DevicePtr<SampleRow>,
        pub history: DevicePtr<i32>,
        pub batch: DevicePtr<Row>,
        pub drawn: DrawnTokens,
        pub vocab: i32,
    }
}

impl Part {
    pub const NONE: Self = Self {
        weight: DevicePtr::NULL,
        bias: DevicePtr::NULL,
        rows: 0,
        tiles: 0,
        column: 0,
        ty: 0,
    };
}

impl DrawnTokens {
    pub const NONE: Self = Self::of_parts(DevicePtr::NULL, 1);

    /// Tokens in the format of `argmax.cu`: for each part of a row the complement of an id below the rank of
    /// its logit, or a mark that a logit is not finite.
    #[must_use]
    pub const fn of_parts(best: DevicePtr<u64>, parts: usize) -> Self {
        Self {
            best,
            broken: DevicePtr::NULL,
            parts: parts as i32,
        }
    }

    /// Tokens in the format of `decode_step.cu`: one per row, and the rows with a logit that
    /// is not finite.
    #[must_use]
    pub const fn of_rows(best: DevicePtr<u64>, broken: DevicePtr<u32>) -> Self {
        Self {
            best,
            broken,
            parts: 1,
        }
    }
}
