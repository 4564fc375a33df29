use super::super::memory::Budget;
use super::*;
use std::os::fd::FromRawFd;

const SIZE: u64 = 2 * GRANULE;

fn physical(budget: &Arc<Budget>) -> Arc<Physical> {
    let share = budget.take(SIZE).unwrap();
    Arc::new(Physical::new(SIZE, share).unwrap())
}

fn mapped(memory: &Memory, physical: Arc<Physical>) -> Range<u64> {
    let start = memory.reserve(SIZE).unwrap();
    let range = start..start + SIZE;
    memory.map(range.clone(), physical, 0).unwrap();
    range
}

fn last_word(range: &Range<u64>) -> *mut u64 {
    (range.end - 8) as *mut u64
}

#[test]
fn memory_is_reached_as_it_is_allowed() {
    let (memory, budget) = (Memory::new(), Arc::new(Budget::new(SIZE)));
    let range = mapped(&memory, physical(&budget));
    assert!(memory.space().ranges.is_empty());
    for (access, writable) in [(Access::ReadWrite, true), (Access::Read, false)] {
        memory.allow(&range, access).unwrap();
        let [reachable] = memory.space().ranges[..] else {
            panic!("not one range");
        };
        assert_eq!(reachable.start..reachable.end, range);
        assert_eq!(reachable.writable, writable);
        assert_eq!(memory.reach(&range, Access::ReadWrite).is_ok(), writable);
    }
}

#[test]
fn memory_lives_as_long_as_a_mapping_or_a_handle() {
    let (memory, budget) = (Memory::new(), Arc::new(Budget::new(SIZE)));
    let range = mapped(&memory, physical(&budget));
    let free = || budget.free_and_total().0;
    assert_eq!(free(), 0);
    assert_eq!(memory.unreserve(&range), Err(INVALID));
    assert_eq!(
        memory.unmap(&(range.start..range.end - GRANULE)),
        Err(INVALID)
    );
    memory.unmap(&range).unwrap();
    assert_eq!(free(), SIZE);
    assert!(memory.space().ranges.is_empty());
    memory.map(range.clone(), physical(&budget), 0).unwrap();
    let twice = Physical::import(memfd().as_raw_fd()).map(Arc::new).unwrap();
    assert_eq!(memory.map(range.clone(), twice, 0), Err(INVALID));
    memory.unmap(&range).unwrap();
    memory.unreserve(&range).unwrap();
    assert_eq!(memory.unmap(&range), Err(INVALID));
}

/// Descriptor that is no exported memory.
fn memfd() -> OwnedFd {
    let budget = Arc::new(Budget::new(SIZE));
    physical(&budget).export().unwrap()
}

#[test]
fn a_descriptor_stands_for_the_same_memory() {
    let (memory, budget) = (Memory::new(), Arc::new(Budget::new(SIZE)));
    let made = physical(&budget);
    let descriptor = made.export().unwrap();
    let first = mapped(&memory, made);
    memory.allow(&first, Access::ReadWrite).unwrap();
    // SAFETY: the last word of the mapping above.
    unsafe { last_word(&first).write(7) };
    memory.unmap(&first).unwrap();
    let taken = Physical::import(descriptor.as_raw_fd()).unwrap();
    drop(descriptor);
    let second = mapped(&memory, Arc::new(taken));
    memory.allow(&second, Access::Read).unwrap();
    // SAFETY: as above, to be read.
    assert_eq!(unsafe { last_word(&second).read() }, 7);
    assert_eq!(budget.free_and_total().0, SIZE);
}

#[test]
fn what_is_no_such_memory_is_not_taken_over() {
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    let other = memfd_create("another", MFdFlags::MFD_CLOEXEC).unwrap();
    for descriptor in [file.as_raw_fd(), other.as_raw_fd(), -1] {
        let taken = Physical::import(descriptor);
        assert!(taken.is_err_and(|error| error == INVALID));
    }
}

#[test]
fn more_than_there_is_is_not_mapped() {
    let (memory, budget) = (Memory::new(), Arc::new(Budget::new(SIZE)));
    let made = physical(&budget);
    let start = memory.reserve(2 * SIZE).unwrap();
    let map = |range, offset| memory.map(range, Arc::clone(&made), offset);
    assert_eq!(map(start..start + 2 * SIZE, 0), Err(INVALID));
    assert_eq!(map(start..start + SIZE, GRANULE), Err(INVALID));
    let beyond = start + SIZE + GRANULE;
    assert_eq!(map(beyond..beyond + SIZE, 0), Err(INVALID));
    assert_eq!(memory.reserve(SIZE + 1), Err(INVALID));
    assert_eq!(map(start + SIZE..start + 2 * SIZE, 0), Ok(()));
}

/// Calls as the child makes them.
#[test]
fn memory_is_shared_by_calls() {
    use super::super::errors::given;
    let posix = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: plain numbers and pointers, for which zeros are valid.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let size = SIZE as usize;
    let made = given(|place| cuMemCreate(place, size, Some(&properties), 0)).unwrap();
    let descriptor = given(|place| cuMemExportToShareableHandle(place, made, posix, 0)).unwrap();
    // SAFETY: just made, with no other owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    assert_eq!(cuMemRelease(made), CUresult::CUDA_SUCCESS);
    let number = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
    let taken = given(|place| cuMemImportFromShareableHandle(place, number, posix)).unwrap();
    let start = given(|place| cuMemAddressReserve(place, size, 0, 0, 0)).unwrap();
    assert_eq!(cuMemMap(start, size, 0, taken, 0), CUresult::CUDA_SUCCESS);
    let access = CUmemAccessDesc {
        location: properties.location,
        flags: Flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let allowed = cuMemSetAccess(start, size, Some(&access), 1);
    assert_eq!(allowed, CUresult::CUDA_SUCCESS);
    assert!(
        MEMORY
            .reach(&(start..start + SIZE), Access::ReadWrite)
            .is_ok()
    );
    for result in [
        cuMemUnmap(start, size),
        cuMemRelease(taken),
        cuMemAddressFree(start, size),
    ] {
        assert_eq!(result, CUresult::CUDA_SUCCESS);
    }
}
