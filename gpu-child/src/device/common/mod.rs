//! What every device knows in the same way.

pub mod placement;
