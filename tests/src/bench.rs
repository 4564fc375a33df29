//! Shared code of the benchmarks: a client of low cost, and statistics.

pub mod burst;
pub mod pause;
pub mod probes;
pub mod pump;
pub mod shell_loop;
pub mod siege;
pub mod stats;
pub mod steady;
pub mod structured;

pub use burst::{Burst, Stream};
pub use pump::{Pump, Totals};
pub use stats::Latencies;
