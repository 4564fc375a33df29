//! Places of buffers in one arena, one behind the other.
//!
//! The code that places buffers runs twice: without an arena it counts their bytes for the memory budget, and in the
//! allocated arena it returns their addresses. So a buffer is declared once, with its size.

use super::arguments::Row;
use super::memory::{Arena, DevicePtr, Layout};

/// The next free place. The default counts bytes only.
#[derive(Debug, Default)]
pub struct BufferAllocator<'a> {
    layout: Layout,
    arena: Option<&'a Arena>,
    input_bytes: usize,
}

impl<'a> BufferAllocator<'a> {
    #[must_use]
    pub fn in_arena(arena: &'a Arena) -> Self {
        Self {
            arena: Some(arena),
            ..Self::default()
        }
    }

    /// A buffer of `count` elements; null without an arena.
    ///
    /// # Panics
    /// If the arena has no room for it.
    pub fn buffer<T>(&mut self, count: usize) -> DevicePtr<T> {
        let offset = self.layout.place((count * size_of::<T>()) as u64);
        self.arena
            .map_or(DevicePtr::NULL, |arena| arena.at(offset, count))
    }

    /// A buffer for at most `count` elements that a step copies to the device.
    ///
    /// # Panics
    /// If the arena has no room for it.
    pub fn input<T: Input>(&mut self, count: usize) -> InputBuffer<T> {
        self.input_bytes += count * size_of::<T>();
        InputBuffer {
            to: self.buffer(count),
            count,
        }
    }

    /// Bytes of all buffers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// Bytes of all inputs, without gaps.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.input_bytes
    }
}

/// Elements of a step's inputs.
///
/// # Safety
/// Has only 32-bit integers.
pub unsafe trait Input: Copy {}
// SAFETY: four `i32`.
unsafe impl Input for Row {}
// SAFETY: one `i32`.
unsafe impl Input for i32 {}

/// A buffer that a step's inputs are copied to.
#[derive(Debug, Clone, Copy)]
pub struct InputBuffer<T> {
    to: DevicePtr<T>,
    count: usize,
}

impl<T: Input> InputBuffer<T> {
    pub const NONE: Self = Self {
        to: DevicePtr::NULL,
        count: 0,
    };

    #[must_use]
    pub fn on_device(&self) -> DevicePtr<T> {
        self.to
    }

    /// The values that a step copies to this buffer.
    ///
    /// # Panics
    /// If they are more than it holds.
    #[must_use]
    pub fn filled<'a>(&self, values: &'a [T]) -> StepInput<'a> {
        assert!(values.len() <= self.count, "a batch larger than announced");
        // SAFETY: `Input` types are whole 32-bit integers, without padding.
        let bytes =
            unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        StepInput {
            to: self.to.cast(),
            bytes,
        }
    }
}

/// Values of one input, and their buffer.
#[derive(Debug, Clone, Copy)]
pub struct StepInput<'a> {
    pub to: DevicePtr<i32>,
    pub bytes: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_and_every_input_is_counted() {
        let mut places = BufferAllocator::default();
        assert_eq!((places.bytes(), places.input_bytes()), (0, 0));
        places.buffer::<u16>(300);
        assert_eq!((places.bytes(), places.input_bytes()), (768, 0));
        places.input::<i32>(5);
        places.input::<Row>(3);
        assert_eq!((places.bytes(), places.input_bytes()), (1280, 20 + 48));
    }

    #[test]
    #[should_panic(expected = "a batch larger than announced")]
    fn more_values_than_a_buffer_holds_are_refused() {
        let buffer = BufferAllocator::default().input::<i32>(2);
        assert_eq!(buffer.filled(&[1, 2]).bytes.len(), 8);
        let _ = buffer.filled(&[1, 2, 3]);
    }
}
