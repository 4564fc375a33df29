use super::super::devices::{cuMemGetInfo_v2, enter};
use super::super::errors::given;
use super::*;
use std::mem::MaybeUninit;

const OUT_OF_MEMORY: Outcome<u64> = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);

fn ranges(memory: &Memory) -> Vec<(Range<u64>, bool)> {
    let ranges = memory.space().ranges;
    let mut ranges: Vec<_> = ranges
        .iter()
        .map(|range| (range.start..range.end, range.writable))
        .collect();
    ranges.sort_by_key(|(range, _)| range.start);
    ranges
}

#[test]
fn what_is_taken_is_counted_until_it_is_given_back() {
    let (memory, budget) = (Memory::new(), Arc::new(Budget::new(1 << 20)));
    let one = memory.allocate(700 << 10, &budget).unwrap();
    assert_eq!(budget.free_and_total(), (324 << 10, 1 << 20));
    assert_eq!(memory.allocate(325 << 10, &budget), OUT_OF_MEMORY);
    assert_eq!(memory.allocate(u64::MAX, &budget), OUT_OF_MEMORY);
    let other = memory.allocate(324 << 10, &budget).unwrap();
    memory.free(one, false).unwrap();
    memory.free(other, false).unwrap();
    assert_eq!(budget.free_and_total(), (1 << 20, 1 << 20));
    let again = memory.free(one, false);
    assert_eq!(again, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn launches_reach_allocations_and_pinned_memory_to_the_byte() {
    let (memory, budget) = (Memory::new(), Arc::new(Budget::new(1 << 20)));
    let device = memory.allocate(1000, &budget).unwrap();
    let host = memory.allocate_host(10).unwrap();
    assert_eq!(budget.free_and_total().0, (1 << 20) - 1000);
    let mut expected = [(device..device + 1000, true), (host..host + 10, true)];
    expected.sort_by_key(|(range, _)| range.start);
    assert_eq!(ranges(&memory), expected);
    assert!(memory.find(device + 999).is_some_and(|it| !it.is_host));
    assert!(memory.find(host + 9).is_some_and(|it| it.is_host));
    assert_eq!(memory.find(device + 1000), None);
    assert!(
        memory
            .reach(&(device + 1..device + 1001), Access::Read)
            .is_err()
    );
    assert!(memory.free(host, false).is_err());
    memory.free(host, true).unwrap();
    assert_eq!(ranges(&memory).len(), 1);
}

#[test]
fn a_fill_ends_where_it_should() {
    const BYTES: u64 = 1 << 20;
    let (memory, budget) = (Memory::new(), Arc::new(Budget::new(BYTES)));
    let start = memory.allocate(BYTES, &budget).unwrap();
    // SAFETY: the whole of the allocation, which this test alone uses.
    let bytes = unsafe {
        fill(start..start + BYTES, 7, false);
        fill(start + 100..start + BYTES - 100, 0, false);
        slice::from_raw_parts(start as *const u8, BYTES as usize)
    };
    let (inner, edge) = (100..BYTES as usize - 100, 100);
    assert!(bytes[inner].iter().all(|byte| *byte == 0));
    assert!(
        bytes[..edge]
            .iter()
            .chain(&bytes[BYTES as usize - edge..])
            .all(|byte| *byte == 7)
    );
}

#[test]
fn the_driver_says_what_lies_at_an_address() {
    enter();
    let start = given(|place| cuMemAlloc_v2(place, 5000)).unwrap();
    let (mut kind, mut managed, mut first, mut bytes) = (0_u32, 1_u32, 0_u64, 0_usize);
    let mut attributes = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    let mut places: [*mut c_void; 4] = [
        (&raw mut kind).cast(),
        (&raw mut managed).cast(),
        (&raw mut first).cast(),
        (&raw mut bytes).cast(),
    ];
    let (attributes, places) = (attributes.as_mut_ptr(), places.as_mut_ptr());
    // SAFETY: four output parameters of their attributes' types.
    let result = unsafe { cuPointerGetAttributes(4, attributes, places, start + 4999) };
    assert_eq!(result, CUresult::CUDA_SUCCESS);
    let device = Kind::CU_MEMORYTYPE_DEVICE as u32;
    assert_eq!((kind, managed, first, bytes), (device, 0, start, 5000));
    assert_eq!(cuMemFree_v2(start), CUresult::CUDA_SUCCESS);
    let mut free = MaybeUninit::uninit();
    let total = given(|place| cuMemGetInfo_v2(Some(&mut free), place));
    let expected = Device::current().unwrap().memory.free_and_total().1;
    assert_eq!(total, Ok(expected as usize));
}
