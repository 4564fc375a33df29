//! KV cache of a card shared with other processes: an allocation with a descriptor, so that they can
//! copy its pages.
//!
//! Checksums are launched after the steps, and read once the stream has passed them, so that no thread waits for
//! them. A copy and its checksum use the same read (`kernels/cuda/kv_pages.cu`).

use super::CudaExecutor;
use super::context::{Context, StreamEvent};
use super::driver_thread::OtherKv;
use super::kernels::{
    AdoptPagesArgs, Geometry, KEYS_OF_FULL, KEYS_OF_SLIDING, Kernel, Module, PAGES_AT_ONCE,
    PageShape, SEAL_EVERY, STATES, SealPagesArgs,
};
use super::kv::KvCache;
use super::memory::{Arena, Pinned, Purpose, download, fetch};
use crate::device::common::kv::PAGE_TOKENS;
use crate::device::common::states::{HALVES, StateLayout, StateUnit};
use crate::device::{KvTransfer, PageCopy, PageId, PagePart};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use worker_orcd_ipc::{Fault, Generation};

const THREADS: u32 = 256;
/// Loads in flight per thread.
const LOADS: u32 = 4;
/// Halves of a load.
const UNIT: usize = 8;
const SUM_BYTES: usize = size_of::<u64>();
/// Pages copied between two waits for the device.
const COPIES_AT_ONCE: usize = 16 * PAGES_AT_ONCE;

#[derive(Debug)]
pub struct KvSharing {
    seal_pages: Kernel<SealPagesArgs>,
    adopt_pages: Kernel<AdoptPagesArgs>,
    /// Accumulators on the device, one per page.
    sums: Arena,
    answer: Pinned,
    done: StreamEvent,
    /// Number of parts of pages with checksums in flight …
    under_way: usize,
    /// … and the parts after them.
    waiting: VecDeque<PagePart>,
    others: BTreeMap<Generation, OtherKv>,
}

impl KvSharing {
    /// # Errors
    /// If a kernel is missing, or the memory cannot be allocated.
    pub fn load(context: &Context, module: &Module) -> Result<Self, Fault> {
        Ok(Self {
            // SAFETY: kv_pages.cu takes SealPagesArgs.
            seal_pages: unsafe { module.kernel("seal_pages") }?,
            // SAFETY: kv_pages.cu takes AdoptPagesArgs.
            adopt_pages: unsafe { module.kernel("adopt_pages") }?,
            sums: Arena::new(
                context,
                Purpose::Scratch,
                (COPIES_AT_ONCE * SUM_BYTES) as u64,
            )?,
            answer: Pinned::new(PAGES_AT_ONCE * SUM_BYTES)?,
            done: StreamEvent::new()?,
            under_way: 0,
            waiting: VecDeque::new(),
            others: BTreeMap::new(),
        })
    }

    /// Launches checksums of the next pages, unless some are in flight.
    fn send(&mut self, context: &Context, kv: &KvCache) -> Result<(), Fault> {
        let count = self.waiting.len().min(PAGES_AT_ONCE);
        if self.under_way > 0 || count == 0 {
            return Ok(());
        }
        let mut arguments = SealPagesArgs {
            pages: kv.arena().at(0, 1),
            sums: self.sums.at(0, PAGES_AT_ONCE),
            shape: shape(kv),
            list: [0; PAGES_AT_ONCE],
            tokens: [0; PAGES_AT_ONCE],
            kinds: [0; PAGES_AT_ONCE],
        };
        for (at, part) in self.waiting.drain(..count).enumerate() {
            assert!(part.page.0 < kv.pages(), "a page of this cache");
            arguments.list[at] = part.page.0 as i32;
            arguments.tokens[at] = part.tokens as i32;
            arguments.kinds[at] = kind_of(kv, part.group);
        }
        self.sums.clear(context)?;
        // SAFETY: a sum for each page, which lie in the cache; the pinned place is read only once the event
        // after it is complete.
        unsafe {
            self.seal_pages
                .launch(context, geometry(kv, count), &arguments)?;
            let sums = &mut self.answer.bytes_mut()[..count * SUM_BYTES];
            fetch(context, sums, self.sums.at(0, sums.len()))?;
        }
        self.done.record(context)?;
        self.under_way = count;
        Ok(())
    }

    /// Copies pages present in both caches; returns the checksums of the copies. Waits for the device.
    fn copy(
        &self,
        context: &Context,
        kv: &KvCache,
        theirs: &Arena,
        copies: &[&PageCopy],
    ) -> Result<Vec<u64>, Fault> {
        self.sums.clear(context)?;
        for (place, part) in (0..)
            .step_by(PAGES_AT_ONCE)
            .zip(copies.chunks(PAGES_AT_ONCE))
        {
            let mut arguments = AdoptPagesArgs {
                theirs: theirs.at(0, 1),
                ours: kv.arena().at(0, 1),
                sums: self.sums.at((place * SUM_BYTES) as u64, part.len()),
                shape: shape(kv),
                from: [0; PAGES_AT_ONCE],
                to: [0; PAGES_AT_ONCE],
                tokens: [0; PAGES_AT_ONCE],
                kinds: [0; PAGES_AT_ONCE],
            };
            for (at, copy) in part.iter().enumerate() {
                assert!(copy.to.0 < kv.pages(), "a page of this cache");
                arguments.from[at] = copy.from as i32;
                arguments.to[at] = copy.to.0 as i32;
                arguments.tokens[at] = copy.tokens as i32;
                arguments.kinds[at] = kind_of(kv, copy.group);
            }
            // SAFETY: a sum for each page, which lie in both caches. Sums of seals were fetched before in stream
            // order.
            unsafe {
                self.adopt_pages
                    .launch(context, geometry(kv, part.len()), &arguments)?;
            }
        }
        let mut sums = vec![0; copies.len()];
        // SAFETY: as many sums as were computed, after the kernels that compute them in stream order.
        unsafe { download(context, &mut sums, self.sums.at(0, copies.len())) }?;
        Ok(sums)
    }
}

impl KvTransfer for CudaExecutor {
    fn share(&self) -> Result<OwnedFd, Fault> {
        self.rank.kv.arena().share()
    }

    fn seal_every(&self) -> u32 {
        SEAL_EVERY as u32
    }

    fn seal(&mut self, parts: &[PagePart]) -> Result<(), Fault> {
        let (context, kv, sharing) = self.sharing()?;
        let may_be = |part: &PagePart| is_part(part.tokens);
        assert!(parts.iter().all(may_be), "a page has no such part");
        sharing.waiting.extend(parts);
        sharing.send(context, kv)
    }

    fn seals(&mut self) -> Result<Vec<u128>, Fault> {
        let (context, kv, sharing) = self.sharing()?;
        if sharing.under_way == 0 || !sharing.done.is_reached()? {
            return Ok(Vec::new());
        }
        let count = std::mem::take(&mut sharing.under_way);
        let (sums, _) = sharing.answer.bytes_mut().as_chunks::<SUM_BYTES>();
        let sums = sums[..count].iter().map(|sum| u64::from_le_bytes(*sum));
        let sums = sums.map(u128::from).collect();
        sharing.send(context, kv)?;
        Ok(sums)
    }

    fn attach(&mut self, child: Generation, memory: OwnedFd, bytes: u64) -> Result<(), Fault> {
        let page_bytes = self.rank.kv.shape().page_bytes();
        if bytes == 0 || !bytes.is_multiple_of(page_bytes) {
            return Err(Fault::Io {
                message: format!("a KV cache of {bytes} bytes has no pages of {page_bytes}"),
            });
        }
        let other = self.driver_thread.map(memory, bytes);
        self.sharing()?.2.others.insert(child, other);
        Ok(())
    }

    fn adopt(&mut self, child: Generation, pages: &[PageCopy]) -> Result<Vec<bool>, Fault> {
        let (context, kv, sharing) = self.sharing()?;
        let mut intact = vec![false; pages.len()];
        if let Some(theirs) = sharing.others.get(&child).and_then(OtherKv::arena) {
            let count = theirs.bytes() / kv.shape().page_bytes();
            let is_there = |copy: &PageCopy| is_part(copy.tokens) && u64::from(copy.from) < count;
            let here: Vec<_> = (0..pages.len())
                .filter(|at| is_there(&pages[*at]))
                .collect();
            for part in here.chunks(COPIES_AT_ONCE) {
                let copies: Vec<_> = part.iter().map(|at| &pages[*at]).collect();
                let sums = sharing.copy(context, kv, theirs, &copies)?;
                for ((at, copy), sum) in part.iter().zip(copies).zip(sums) {
                    intact[*at] = u128::from(sum) == copy.checksum;
                }
            }
        }
        // Attention reads whole pages, and unwritten values must be finite.
        for (copy, _) in pages.iter().zip(&intact).filter(|(_, intact)| !**intact) {
            kv.clear_page(context, copy.to)?;
        }
        Ok(intact)
    }

    /// A card copies hundreds of pages in less than a millisecond.
    fn copies_ahead(&self) -> bool {
        false
    }

    fn has_room_ahead(&self, _: Generation, _: PageId) -> bool {
        false
    }

    fn release(&mut self, child: Generation) {
        if let Some(sharing) = &mut self.kv_sharing
            && let Some(other) = sharing.others.remove(&child)
        {
            self.driver_thread.let_go(other);
        }
    }

    #[cfg(feature = "fault-injection")]
    fn flip_bits(&mut self) {
        // A page of the first request, without a copy so far.
        let place = self.rank.kv.page(PageId(0));
        let mut byte = [0];
        // SAFETY: one byte of the page.
        let flipped = unsafe {
            download(&self.rank.context, &mut byte, place)
                .and_then(|()| super::memory::upload(&self.rank.context, place, &[byte[0] ^ 1]))
        };
        if let Err(fault) = flipped {
            eprintln!("worker-orcd-gpu: no bit was flipped: {fault}");
        }
    }
}

impl CudaExecutor {
    /// State for seals and copies; never used with an unshared KV cache.
    fn sharing(&mut self) -> Result<(&Context, &KvCache, &mut KvSharing), Fault> {
        self.rank.context.enter()?;
        let sharing = self.kv_sharing.as_mut().expect("a KV cache that is shared");
        Ok((&self.rank.context, &self.rank.kv, sharing))
    }
}

/// Accepts this number of positions for seals.
fn is_part(tokens: u32) -> bool {
    let tokens = tokens as usize;
    (1..=PAGE_TOKENS).contains(&tokens) && tokens.is_multiple_of(SEAL_EVERY)
}

/// What the pages of a group hold.
fn kind_of(kv: &KvCache, group: u32) -> u8 {
    let (group, whole) = (group as usize, kv.full_groups());
    match group {
        _ if group < whole => KEYS_OF_FULL,
        _ if group < kv.page_groups().attention => KEYS_OF_SLIDING,
        _ => STATES,
    }
}

fn shape(kv: &KvCache) -> PageShape {
    let [whole, sliding] = kv.shapes();
    let units = |halves: usize| (halves / UNIT) as u32;
    let of_state = kv.state_layout().map(StateLayout::unit);
    let of_state =
        |floats: fn(&StateUnit) -> usize| of_state.map_or(0, |it| units(HALVES * floats(it)));
    PageShape {
        page: units(whole.page()),
        half_layer: [whole, sliding].map(|shape| units(shape.half_layer())),
        head: [whole, sliding].map(|shape| units(shape.head())),
        state_unit: of_state(StateUnit::floats),
        state_rows: of_state(|unit| SEAL_EVERY * unit.row()),
    }
}

/// One line of blocks per page.
fn geometry(kv: &KvCache, pages: usize) -> Geometry {
    let blocks = shape(kv).page.div_ceil(LOADS * THREADS);
    Geometry {
        grid: [blocks, pages as u32],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
    }
}
