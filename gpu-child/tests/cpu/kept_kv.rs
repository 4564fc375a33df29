//! Pages taken over from another process, which may still be alive: the same bits, or none.

use crate::support::{
    MIXED, Model, config, config_like_gemma4_e2b_of_four_layers, config_of_delta_nets,
    config_of_mamba, config_of_short_convs, config_of_single_blocks, config_with_windows,
    copies_of, kv_shape, options, page_table, pages, parts_of, run, tokens,
};
use std::os::fd::OwnedFd;
use worker_orcd_gpu::device::cpu::{CpuExecutor, Device};
use worker_orcd_gpu::device::{Executor, LoadOptions, PageCopy, PageId, PagePart};
use worker_orcd_ipc::{Generation, KvReaders};
use worker_orcd_kernels::cpu::Isa;

fn sharing(model: &Model, kv_cache_bytes: u64) -> CpuExecutor {
    let options = LoadOptions {
        kv_readers: KvReaders::Successors,
        kv_cache_bytes: Some(kv_cache_bytes),
        ..options()
    };
    let device = Device::open(Some(2), Isa::detect()).expect("threads");
    model
        .load_with(device, &options)
        .expect("a model that fits")
}

/// The child that has computed.
const OTHER: Generation = Generation(1);
/// Pages that are not touched take no memory.
const KV_BYTES: u64 = 32 << 20;

fn shared_by(executor: &mut CpuExecutor) -> OwnedFd {
    let kv = executor.kv_transfer().expect("a KV cache that is shared");
    kv.share().expect("a descriptor")
}

fn part(page: PageId, tokens: u32) -> PagePart {
    PagePart {
        page,
        group: 0,
        tokens,
    }
}

fn seals(executor: &mut CpuExecutor, parts: &[PagePart]) -> Vec<u128> {
    let kv = executor.kv_transfer().expect("a KV cache that is shared");
    kv.seal(parts).expect("sealed");
    let seals = kv.seals().expect("seals");
    assert_eq!(seals.len(), parts.len());
    assert!(kv.seals().expect("none").is_empty(), "they are given once");
    seals
}

fn adopt(executor: &mut CpuExecutor, copies: &[PageCopy]) -> Vec<bool> {
    let kv = executor.kv_transfer().expect("a KV cache that is shared");
    kv.adopt(OTHER, copies).expect("copied")
}

#[test]
fn adopted_pages_compute_the_same_bits_and_changed_ones_are_refused() {
    let models = [
        config(None),
        config_with_windows(40),
        config_of_delta_nets(),
        config_of_short_convs(),
        config_of_mamba(),
        config_of_single_blocks(),
    ];
    let models = models.map(|config| Model::random(config, MIXED));
    let like_gemma4 = Model::like_gemma4(config_like_gemma4_e2b_of_four_layers(), MIXED);
    for model in models.into_iter().chain([like_gemma4]) {
        let tokens = tokens(120, 4);
        let mut first = sharing(&model, KV_BYTES);
        let (groups, bytes) = kv_shape(&first);
        let own = pages(3, 4);
        run(&mut first, &model, 0, &tokens[..112], &own);
        // The last block has 16 of its positions, of which 8 are sealed.
        let parts = parts_of(&own, &[32, 32, 32, 8], groups);
        let seals_of_first = seals(&mut first, &parts);
        let expected = run(&mut first, &model, 112, &tokens[112..], &own);
        assert_eq!(seals(&mut first, &parts), seals_of_first, "written behind");

        let mut successor = sharing(&model, KV_BYTES);
        let other = shared_by(&mut first);
        let kv = successor.kv_transfer().expect("shared");
        kv.attach(OTHER, other, bytes).expect("attached");
        let places = pages(40, 4);
        let copies: Vec<_> = (parts.iter().zip(&seals_of_first))
            .zip(page_table(&places, groups as u32))
            .map(|((part, &checksum), to)| PageCopy {
                from: part.page.0,
                to,
                group: part.group,
                tokens: part.tokens,
                checksum,
            })
            .collect();
        assert_eq!(adopt(&mut successor, &copies), vec![true; 4 * groups]);
        run(&mut successor, &model, 104, &tokens[104..112], &places);
        let seen = run(&mut successor, &model, 112, &tokens[112..], &places);
        assert_eq!(seen, expected);

        // The first process lives, and overwrites its sealed positions.
        run(&mut first, &model, 0, &tokens[10..42], &own[1..2]);
        let unused = PageId(60 * groups as u32);
        let nowhere = PageCopy {
            from: u32::MAX,
            to: unused,
            ..copies[0]
        };
        let too_much = PageCopy {
            tokens: 33,
            to: PageId(unused.0 + 1),
            ..copies[0]
        };
        let changed = copies[groups];
        let again = [copies[0], changed, copies[3 * groups], nowhere, too_much];
        assert_eq!(
            adopt(&mut successor, &again),
            [true, false, true, false, false]
        );
        let zero = part(PageId(unused.0 + 2), 32);
        let [refused, unused] = seals(&mut successor, &[part(changed.to, 32), zero])[..] else {
            panic!("two pages");
        };
        assert_eq!(refused, unused, "a page that was refused is zero again");
        let kv = successor.kv_transfer().expect("shared");
        kv.release(OTHER);
        assert_eq!(adopt(&mut successor, &copies[..1]), [false]);
    }
}

#[test]
fn of_a_state_the_sealed_rows_are_adopted_and_no_others() {
    let model = Model::random(config_of_delta_nets(), MIXED);
    let tokens = tokens(32, 4);
    let (mut first, mut successor) = (sharing(&model, KV_BYTES), sharing(&model, KV_BYTES));
    let mut short = sharing(&model, KV_BYTES);
    let (groups, bytes) = kv_shape(&first);
    run(&mut first, &model, 0, &tokens, &[PageId(0)]);
    run(&mut short, &model, 0, &tokens[..8], &[PageId(0)]);
    let parts = parts_of(&[PageId(0)], &[8], groups);
    let sums = seals(&mut first, &parts);
    assert_eq!(sums, seals(&mut short, &parts));
    let other = shared_by(&mut first);
    let kv = successor.kv_transfer().expect("shared");
    kv.attach(OTHER, other, bytes).expect("attached");
    let copies = copies_of(&parts, sums);
    assert_eq!(adopt(&mut successor, &copies), vec![true; groups]);
    let whole = parts_of(&[PageId(0)], &[32], groups);
    assert_eq!(seals(&mut successor, &whole), seals(&mut short, &whole));
}

#[test]
fn what_is_not_sealed_of_a_page_is_not_adopted() {
    let model = Model::random(config(None), MIXED);
    let tokens = tokens(32, 4);
    let mut first = sharing(&model, KV_BYTES);
    run(&mut first, &model, 0, &tokens, &[PageId(0)]);
    let checksum = seals(&mut first, &[part(PageId(0), 8)])[0];
    let mut successor = sharing(&model, KV_BYTES);
    let other = shared_by(&mut first);
    let kv = successor.kv_transfer().expect("shared");
    kv.attach(OTHER, other, KV_BYTES).expect("attached");
    let copy = PageCopy {
        group: 0,
        from: 0,
        to: PageId(1),
        tokens: 8,
        checksum,
    };
    assert_eq!(adopt(&mut successor, &[copy]), [true]);
    let mut short = sharing(&model, KV_BYTES);
    run(&mut short, &model, 0, &tokens[..8], &[PageId(1)]);
    let whole = part(PageId(1), 32);
    assert_eq!(seals(&mut successor, &[whole]), seals(&mut short, &[whole]));
}

#[test]
fn a_kv_cache_of_another_size_than_was_said_or_of_no_whole_pages_is_not_attached() {
    let model = Model::random(config(None), MIXED);
    let mut first = sharing(&model, KV_BYTES);
    let mut smaller = sharing(&model, KV_BYTES / 2);
    let mut attach = |bytes| {
        let memory = shared_by(&mut first);
        let kv = smaller.kv_transfer().expect("shared");
        kv.attach(OTHER, memory, bytes)
    };
    attach(KV_BYTES).expect("each child has a size of its own");
    for bytes in [0, KV_BYTES / 2, KV_BYTES - 1] {
        assert!(attach(bytes).is_err(), "{bytes}");
    }
}

#[test]
fn a_kv_cache_that_nobody_ordered_to_share_is_private() {
    let model = Model::random(config(None), MIXED);
    assert!(model.load(1).kv_transfer().is_none());
}

#[test]
fn there_is_room_ahead_for_the_pages_of_another_cache_and_for_no_others() {
    let model = Model::random(config(None), MIXED);
    let mut first = sharing(&model, KV_BYTES);
    let mut successor = sharing(&model, KV_BYTES);
    let pages = successor.kv_geometry().pages;
    let has_room = |successor: &mut CpuExecutor, page| {
        let kv = successor.kv_transfer().expect("shared");
        kv.has_room_ahead(OTHER, PageId(page))
    };
    assert!(!has_room(&mut successor, 0), "nothing is known of another");
    let other = shared_by(&mut first);
    let kv = successor.kv_transfer().expect("shared");
    kv.attach(OTHER, other, KV_BYTES).expect("attached");
    assert!(kv.copies_ahead());
    assert!(has_room(&mut successor, 0) && has_room(&mut successor, pages - 1));
    assert!(!has_room(&mut successor, pages) && !has_room(&mut successor, u32::MAX));
}
