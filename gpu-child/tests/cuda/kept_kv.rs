//! Pages that a process took over from another, which may still be alive: the same bits, or no pages.

use crate::support::{
    MIXED, Model, config, config_like_gemma4_e2b_of_four_layers, config_of_delta_nets,
    config_of_mamba, config_of_short_convs, config_of_single_blocks, copies_of, kv_shape,
    page_table, pages, parts_of, run, tokens,
};
use crate::{load_with, options};
use std::os::fd::OwnedFd;
use worker_orcd_gpu::device::cuda::{CudaExecutor, CudaOptions};
use worker_orcd_gpu::device::{Executor, KvTransfer, LoadOptions, PageCopy, PageId, PagePart};
use worker_orcd_ipc::{Generation, KvReaders, Role};

/// The first child, which has computed the pages.
const OTHER: Generation = Generation(1);
const KV_BYTES: u64 = 4 << 20;

fn sharing(model: &Model, kv_cache_bytes: u64, role: Role) -> CudaExecutor {
    let load = LoadOptions {
        kv_readers: KvReaders::Successors,
        kv_cache_bytes: Some(kv_cache_bytes),
        role,
        ..options().load
    };
    let options = CudaOptions { load, ..options() };
    load_with(model, &options)
}

fn kv_transfer(executor: &mut CudaExecutor) -> &mut dyn KvTransfer {
    executor.kv_transfer().expect("a KV cache that is shared")
}

fn shared_by(executor: &mut CudaExecutor) -> OwnedFd {
    kv_transfer(executor).share().expect("a descriptor")
}

/// Checksums of whole pages.
fn seals(executor: &mut CudaExecutor, pages: &[PageId]) -> Vec<u128> {
    let whole = |&page| PagePart {
        page,
        group: 0,
        tokens: 32,
    };
    let parts: Vec<_> = pages.iter().map(whole).collect();
    seals_of(executor, &parts)
}

/// Checksums, after the device has computed all of them.
fn seals_of(executor: &mut CudaExecutor, parts: &[PagePart]) -> Vec<u128> {
    let kv = kv_transfer(executor);
    kv.seal(parts).expect("sent");
    let mut seals = Vec::new();
    while seals.len() < parts.len() {
        seals.extend(kv.seals().expect("seals"));
    }
    assert!(kv.seals().expect("none").is_empty(), "they are given once");
    seals
}

fn copy(from: u32, to: PageId, checksum: u128) -> PageCopy {
    PageCopy {
        group: 0,
        from,
        to,
        tokens: 32,
        checksum,
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn adopted_pages_compute_the_same_bits_and_changed_ones_are_refused() {
    adopted_pages_compute_the_same_bits(&Model::random(config(None), MIXED), KV_BYTES);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn adopted_states_compute_the_same_bits_and_changed_ones_are_refused() {
    for config in [
        config_of_delta_nets(),
        config_of_short_convs(),
        config_of_mamba(),
        config_of_single_blocks(),
    ] {
        adopted_pages_compute_the_same_bits(&Model::random(config, MIXED), 8 * KV_BYTES);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn adopted_pages_of_both_kinds_of_heads_compute_the_same_bits() {
    let model = Model::like_gemma4(config_like_gemma4_e2b_of_four_layers(), MIXED);
    adopted_pages_compute_the_same_bits(&model, KV_BYTES);
}

/// Bytes of a KV cache with room for 80 blocks.
fn adopted_pages_compute_the_same_bits(model: &Model, kv_bytes: u64) {
    let tokens = tokens(120, 4);
    let mut first = sharing(model, kv_bytes, Role::Active);
    let (groups, bytes) = kv_shape(&first);
    let own = pages(3, 4);
    run(&mut first, model, 0, &tokens[..112], &own);
    // The last block has 16 of its positions, of which 8 are sealed.
    let parts = parts_of(&own, &[32, 32, 32, 8], groups);
    let sums = seals_of(&mut first, &parts);
    let expected = run(&mut first, model, 112, &tokens[112..], &own);
    assert_eq!(seals_of(&mut first, &parts), sums, "written behind them");

    // Of any size, and with its own memory before its promotion.
    let mut successor = sharing(model, 2 * kv_bytes, Role::Standby);
    let unused = PageId(70 * groups as u32);
    let [warm, zero] = seals(&mut successor, &[PageId(0), unused])[..] else {
        panic!("two pages");
    };
    assert_eq!(warm, zero, "nothing is left of warming up");
    let other = shared_by(&mut first);
    kv_transfer(&mut successor)
        .attach(OTHER, other, bytes)
        .expect("attached");
    let places = pages(40, 4);
    let there = page_table(&places, groups as u32);
    let copies: Vec<_> = (parts.iter().zip(&sums).zip(&there))
        .map(|((part, &checksum), &to)| PageCopy {
            from: part.page.0,
            to,
            group: part.group,
            tokens: part.tokens,
            checksum,
        })
        .collect();
    successor.promote().expect("promoted");
    assert_eq!(
        kv_transfer(&mut successor)
            .adopt(OTHER, &copies)
            .expect("copied"),
        vec![true; 4 * groups]
    );
    let parts_there: Vec<_> = (parts.iter().zip(&there))
        .map(|(part, &page)| PagePart { page, ..*part })
        .collect();
    assert_eq!(
        seals_of(&mut successor, &parts_there),
        sums,
        "wherever they lie"
    );
    run(&mut successor, model, 104, &tokens[104..112], &places);
    let seen = run(&mut successor, model, 112, &tokens[112..], &places);
    assert_eq!(seen, expected);

    // The first process lives, and overwrites its sealed pages.
    run(&mut first, model, 0, &tokens[10..42], &own[1..2]);
    let (intact, changed) = (copies[0], copies[groups]);
    let nowhere = PageCopy {
        from: u32::MAX,
        to: PageId(60 * groups as u32),
        ..intact
    };
    let part = PageCopy {
        tokens: 16,
        to: PageId(61 * groups as u32),
        ..intact
    };
    let again = [intact, changed, copies[2 * groups], nowhere, part];
    let found = kv_transfer(&mut successor)
        .adopt(OTHER, &again)
        .expect("copied");
    assert_eq!(found, [true, false, true, false, false]);
    let [refused, zero] = seals(&mut successor, &[changed.to, unused])[..] else {
        panic!("two pages");
    };
    assert_eq!(refused, zero, "a page that was refused is zero again");
    let before = successor.memory();
    kv_transfer(&mut successor).release(OTHER);
    assert_eq!(
        successor.memory().kv_capacity_bytes,
        before.kv_capacity_bytes
    );
    let gone = kv_transfer(&mut successor)
        .adopt(OTHER, &copies[..1])
        .expect("nothing");
    assert_eq!(gone, [false]);
}

/// Of a page of a state, the rows of sealed positions.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn of_a_state_the_sealed_rows_are_adopted_and_no_others_on_a_card() {
    let model = Model::random(config_of_delta_nets(), MIXED);
    let tokens = tokens(32, 4);
    let (mut first, mut successor, mut short) = {
        let load = || sharing(&model, KV_BYTES, Role::Active);
        (load(), load(), load())
    };
    let (groups, bytes) = kv_shape(&first);
    let block = [PageId(0)];
    for sealed in [8, 16, 24] {
        run(&mut first, &model, 0, &tokens, &block);
        run(&mut short, &model, 0, &tokens[..sealed], &block);
        let parts = parts_of(&block, &[sealed as u32], groups);
        let sums = seals_of(&mut first, &parts);
        assert_eq!(sums, seals_of(&mut short, &parts));
        let other = shared_by(&mut first);
        kv_transfer(&mut successor)
            .attach(OTHER, other, bytes)
            .expect("attached");
        let copies = copies_of(&parts, sums);
        let intact = kv_transfer(&mut successor)
            .adopt(OTHER, &copies)
            .expect("copied");
        assert_eq!(intact, vec![true; groups]);
        let whole = parts_of(&block, &[32], groups);
        assert_eq!(
            seals_of(&mut successor, &whole),
            seals_of(&mut short, &whole)
        );
        kv_transfer(&mut successor).release(OTHER);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_not_sealed_of_a_page_is_not_adopted_on_a_card() {
    let model = Model::random(config(None), MIXED);
    let tokens = tokens(40, 4);
    for sealed in [8, 16, 24] {
        let mut first = sharing(&model, KV_BYTES, Role::Active);
        let (page, place) = (PageId(5), PageId(9));
        run(&mut first, &model, 0, &tokens[..sealed], &[page]);
        let part = PagePart {
            group: 0,
            page,
            tokens: sealed as u32,
        };
        let sum = seals_of(&mut first, &[part])[0];
        let of_short = seals(&mut first, &[page]);
        // Later writes change the checksum of the whole page, and not of the part.
        run(&mut first, &model, sealed, &tokens[sealed..32], &[page]);
        assert_eq!(seals_of(&mut first, &[part]), [sum]);
        assert_ne!(seals(&mut first, &[page]), of_short);

        let mut successor = sharing(&model, KV_BYTES, Role::Active);
        let other = shared_by(&mut first);
        kv_transfer(&mut successor)
            .attach(OTHER, other, KV_BYTES)
            .expect("attached");
        let copy = PageCopy {
            group: 0,
            from: page.0,
            to: place,
            tokens: part.tokens,
            checksum: sum,
        };
        let odd = PageCopy {
            group: 0,
            tokens: 7,
            to: PageId(10),
            ..copy
        };
        let intact = kv_transfer(&mut successor)
            .adopt(OTHER, &[odd, copy])
            .expect("copied");
        assert_eq!(intact, [false, true]);
        assert_eq!(
            seals(&mut successor, &[place]),
            of_short,
            "the rest is clear"
        );
        let rest = run(
            &mut successor,
            &model,
            sealed,
            &tokens[sealed..],
            &[place, PageId(3)],
        );
        let again = run(
            &mut first,
            &model,
            sealed,
            &tokens[sealed..],
            &[page, PageId(3)],
        );
        assert_eq!(rest, again);
    }
}

/// More pages than one launch can take.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn many_pages_are_sealed_and_adopted_in_their_order() {
    const PAGES: u32 = 600;
    let model = Model::random(config(None), MIXED);
    let bytes = 1024
        * sharing(&model, KV_BYTES, Role::Active)
            .kv_geometry()
            .page_bytes;
    let mut first = sharing(&model, bytes, Role::Active);
    let tokens = tokens(32, 4);
    for page in (0..PAGES).step_by(7) {
        run(
            &mut first,
            &model,
            0,
            &tokens[page as usize % 20..],
            &[PageId(page)],
        );
    }
    let all: Vec<_> = (0..PAGES).map(PageId).collect();
    let sums = seals(&mut first, &all);
    let mut successor = sharing(&model, bytes, Role::Active);
    let other = shared_by(&mut first);
    kv_transfer(&mut successor)
        .attach(OTHER, other, bytes)
        .expect("attached");
    let copies: Vec<_> = (0..PAGES)
        .map(|page| copy(page, PageId(1023 - page), sums[page as usize]))
        .collect();
    let mut wrong = copies.clone();
    wrong[300].checksum ^= 1;
    let intact = kv_transfer(&mut successor)
        .adopt(OTHER, &wrong)
        .expect("copied");
    assert!((0..600).all(|page| intact[page] == (page != 300)));
    let intact = kv_transfer(&mut successor)
        .adopt(OTHER, &copies)
        .expect("copied");
    assert!(intact.iter().all(|intact| *intact));
    let there: Vec<_> = copies.iter().map(|copy| copy.to).collect();
    assert_eq!(seals(&mut successor, &there), sums);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_no_kv_cache_has_no_pages() {
    let model = Model::random(config(None), MIXED);
    let mut first = sharing(&model, KV_BYTES, Role::Active);
    let mut other = sharing(&model, KV_BYTES, Role::Active);
    for bytes in [0, KV_BYTES + 1] {
        let memory = shared_by(&mut first);
        assert!(
            kv_transfer(&mut other)
                .attach(OTHER, memory, bytes)
                .is_err(),
            "{bytes}"
        );
    }
    let file = OwnedFd::from(tempfile::tempfile().expect("a file"));
    for (memory, bytes) in [(shared_by(&mut first), 64 * KV_BYTES), (file, KV_BYTES)] {
        let kv = kv_transfer(&mut other);
        // The mapping is made beside the steps, or fails.
        kv.attach(OTHER, memory, bytes).expect("whole pages");
        let copy = PageCopy {
            group: 0,
            from: 0,
            to: PageId(0),
            tokens: kv.seal_every(),
            checksum: 0,
        };
        let intact = kv.adopt(OTHER, &[copy]).expect("a device that goes on");
        assert_eq!(intact, [false], "{bytes}");
        kv.release(OTHER);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_kv_cache_is_private_unless_two_fit() {
    let model = Model::random(config(None), MIXED);
    assert!(load_with(&model, &options()).kv_transfer().is_none());
    let total = load_with(&model, &options()).memory().total_bytes;
    let most = total.expect("a card") / 10 * 6;
    assert!(sharing(&model, most, Role::Active).kv_transfer().is_none());
}

/// As of a draft model that is given up: no drop frees mapped memory.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_model_that_is_released_has_no_mapped_memory() {
    let model = Model::random(config(None), MIXED);
    for role in [Role::Active, Role::Standby] {
        let load = LoadOptions {
            role,
            ..options().load
        };
        let options = CudaOptions { load, ..options() };
        let mut executor = load_with(&model, &options);
        if role == Role::Standby {
            executor.promote().expect("promoted");
        }
        let before = executor.memory();
        assert!(before.weights_bytes > 0 && before.kv_capacity_bytes > 0);
        Executor::release(&mut executor).expect("released");
        let after = executor.memory();
        assert_eq!(after.weights_bytes, 0);
        // That of a standby was promised first, and so were its activations.
        assert_eq!(after.kv_capacity_bytes == 0, role == Role::Standby);
        assert_eq!(
            after.scratch_bytes < before.scratch_bytes,
            role == Role::Standby
        );
    }
}
