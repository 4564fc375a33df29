//! The calls of NVIDIA's driver that the child makes, by their names in C.
//!
//! ```text
//! devices    what there is, and the context of a thread
//! memory     allocations, pinned host memory, what a launch may reach     pages     addresses of this process
//! mapping    memory that descriptors stand for, mapped where wanted       handles   what names a thing to the caller
//! streams    a thread for each, with its queue                            errors    codes, and the one that stays
//! events     places in a stream
//! copies     between host and device, and fills
//! modules    fatbins and their kernels
//! launches   kernels, put into a stream
//! graphs     what was put into a stream while that was recorded
//! ```
//!
//! An address of the device is the same address of this process. There is one address space for all devices,
//! and one error that stays. Memory is counted for each process by itself: two processes on one device take
//! as much as each of them could alone.
//!
//! Places for an answer are `Option<&mut MaybeUninit<T>>`, which is C's pointer that may be null; that they
//! are alive is the caller's promise, as for every driver.
//!
//! Source: CUDA driver API 13.0.

// The names are NVIDIA's.
#![allow(non_snake_case)]

mod copies;
mod devices;
mod errors;
mod events;
mod graphs;
mod handles;
mod launches;
mod mapping;
mod memory;
mod modules;
mod pages;
mod streams;
