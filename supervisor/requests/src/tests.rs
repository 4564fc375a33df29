//! Tests of the whole journal: orders of events, a machine on which every child dies, and placement under load.

mod any_order;
mod bad_machine;
mod placement;
