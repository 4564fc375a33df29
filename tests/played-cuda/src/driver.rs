//! Functions of NVIDIA's driver that the child calls, by their names in C.
//!
//! ```text
//! devices    devices, and the context of a thread
//! memory     allocations, pinned host memory, address space of launches   pages     addresses of this process
//! mapping    memory behind descriptors, mapped at reserved addresses      handles   handles of the caller
//! streams    a thread for each, with its queue                            errors    codes, and the sticky error
//! events     positions in a stream
//! copies     between host and device, and fills
//! modules    fatbins and their kernels
//! launches   kernels, put into a stream
//! graphs     recorded work of a stream
//! ```
//!
//! An address of the device is the same address of this process. All devices share one address space and one sticky
//! error. Memory is counted per process: each of two processes on one device can allocate all of it.
//!
//! Output parameters are `Option<&mut MaybeUninit<T>>`, which is C's nullable pointer. As for every driver, the caller
//! guarantees that they are alive.
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
