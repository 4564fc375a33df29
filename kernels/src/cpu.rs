//! Fast paths of the operations in [`reference`](crate::reference), for one core.
//!
//! The law of this module, on which all layers above rely:
//!
//! > Every output element has one owner, and the order in which its terms are added depends on
//! > its own row and its own inputs only: never on how many rows or tokens share a call.
//!
//! * [`isa`]: the instruction set in use, detected once.
//! * [`packed`]: memory layout of weights, eight rows interleaved, so that eight sums grow side by side in one vector
//!   register and no sum crosses a register.
//! * [`quantize`]: activations as blocks of 32 signed bytes, the other side of integer dots.
//! * [`matmul`]: one group of eight weight rows against any number of tokens.
//! * [`attention`]: fixed spans of positions over an F16 cache, merged in order.
//! * [`delta_net`]: the recurrence of linear attention, by blocks of positions.
//! * [`mamba`]: state-space layers, by the same blocks.
//! * [`short_conv`]: gated convolutions over a few positions, by the same blocks.
//! * [`routing`]: selection of a row's experts.
//! * [`mod@rmsnorm`], [`rope`], [`mod@glu`], [`convert`]: the rest of a layer. [`mod@softcap`]: of logits.
//!
//! Each operation has a portable body, and an AVX2 body if that pays. The two may differ in rounding; each of them
//! obeys the law.

pub mod attention;
pub mod convert;
pub mod delta_net;
pub mod glu;
pub mod isa;
pub mod mamba;
pub mod matmul;
pub mod packed;
pub mod quantize;
pub mod rmsnorm;
pub mod rope;
pub mod routing;
pub mod short_conv;
pub mod softcap;

pub use attention::{
    KvTile, Partial, QueryRow, SPAN_TOKENS, TILE_TOKENS, attention_span, finish, merge,
};
pub use delta_net::{DeltaInputs, DeltaUnit, DeltaWeights, delta_row};
pub use glu::glu;
pub use isa::Isa;
pub use mamba::{ScanInputs, ScanUnit, ScanWeights, scan_row};
pub use matmul::{Activations, matmul_group};
pub use packed::{PackedMatrix, PackedShape, ROWS};
pub use quantize::{BlockMeta, Q_BLOCK, quantize_row};
pub use rmsnorm::rmsnorm;
pub use rope::{RopeRow, apply_rope};
pub use routing::{Choice, add_weighted, route, sigmoid};
pub use short_conv::{ConvInputs, ConvUnit, short_conv_row};
pub use softcap::softcap;
