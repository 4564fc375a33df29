//! Kernels of a few instructions.

use super::arithmetic::to_odd;
use super::{AddressSpace, Launch, Range, Trouble, run};
use crate::ptx::Module;
use half::f16;

const HEAD: &str =
    ".version 9.0\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n";

/// Runs a kernel with one pointer to these words, in `threads` of one block.
fn run_on(words: &mut [u32], threads: u32, body: &str) -> Result<(), Trouble> {
    run_blocks(words, (1, threads), body)
}

/// The same in several blocks that may wait for each other, unless there is one.
fn run_blocks(words: &mut [u32], (blocks, threads): (u32, u32), body: &str) -> Result<(), Trouble> {
    let text = format!(
        "{HEAD}.visible .entry k(\n.param .u64 k_param_0\n)\n{{\n.reg .pred %p<9>;\n.reg .b32 %r<40>;\n\
         .reg .f32 %f<9>;\n.reg .b64 %rd<9>;\n.reg .b16 %rs<9>;\nld.param.u64 %rd1, [k_param_0];\n\
         mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\n{body}\nret;\n}}\n"
    );
    let module = Module::new(text).expect("PTX");
    let kernel = module.kernel("k").expect("understood").expect("there");
    let start = words.as_mut_ptr() as u64;
    let space = AddressSpace {
        ranges: vec![Range {
            start,
            end: start + size_of_val(words) as u64,
            writable: true,
        }],
    };
    let launch = Launch {
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 1024,
        parameters: start.to_le_bytes().to_vec(),
        together: blocks > 1,
    };
    run(&kernel, &launch, &space, &|| true)
}

#[test]
fn lanes_that_went_another_way_meet_again() {
    let mut words = [0; 32];
    // Odd lanes take a path behind the others', and shuffle with all.
    let body = "
        and.b32 %r2, %r1, 1;
        setp.eq.s32 %p1, %r2, 1;
        @%p1 bra $L_odd;
        mov.u32 %r3, 10;
        $L_join:
        shfl.sync.bfly.b32 %r4|%p2, %r3, 1, 31, -1;
        st.global.u32 [%rd3], %r4;
        ret;
        $L_odd:
        mov.u32 %r3, 20;
        bra $L_join;";
    run_on(&mut words, 32, body).expect("an end");
    for (lane, word) in words.into_iter().enumerate() {
        assert_eq!(word, if lane % 2 == 0 { 20 } else { 10 }, "lane {lane}");
    }
}

#[test]
fn loops_of_different_lengths_end_together() {
    let mut words = [0; 32];
    let body = "
        mov.u32 %r2, 0;
        $L_again:
        add.s32 %r2, %r2, 3;
        add.s32 %r1, %r1, -1;
        setp.ge.s32 %p1, %r1, 0;
        @%p1 bra $L_again;
        redux.sync.max.u32 %r3, %r2, -1;
        add.s32 %r4, %r3, %r2;
        st.global.u32 [%rd3], %r4;";
    run_on(&mut words, 32, body).expect("an end");
    for (lane, word) in (0_u32..).zip(words) {
        assert_eq!(word, 96 + 3 * (lane + 1), "lane {lane}");
    }
}

#[test]
fn warps_wait_for_each_other_at_a_barrier() {
    let mut words = [0; 128];
    let body = "
        mov.u32 %r2, dynamic;
        shl.b32 %r3, %r1, 2;
        add.s32 %r4, %r2, %r3;
        st.shared.u32 [%r4], %r1;
        bar.sync 0;
        sub.s32 %r5, 127, %r1;
        shl.b32 %r6, %r5, 2;
        add.s32 %r7, %r2, %r6;
        ld.shared.u32 %r8, [%r7];
        st.global.u32 [%rd3], %r8;";
    run_on(&mut words, 128, body).expect("an end");
    assert_eq!(words.to_vec(), (0..128).rev().collect::<Vec<u32>>());
}

#[test]
fn a_copy_is_seen_by_who_has_waited_for_it() {
    let body = |wait: &str| {
        format!(
            "mov.u32 %r2, dynamic;
             shl.b32 %r3, %r1, 4;
             add.s32 %r4, %r2, %r3;
             mul.wide.u32 %rd4, %r1, 16;
             add.s64 %rd5, %rd1, %rd4;
             cp.async.cg.shared.global [%r4], [%rd5], 16;
             cp.async.commit_group;
             {wait}
             ld.shared.u32 %r5, [%r4];
             st.global.u32 [%rd5], %r5;"
        )
    };
    /// As a copy of 16 bytes wants it.
    #[repr(align(16))]
    struct Aligned([u32; 128]);
    let mut words = Aligned([7; 128]);
    run_on(&mut words.0, 32, &body("cp.async.wait_group 1;")).expect("an end");
    assert_ne!(words.0[0], 7, "nobody waited for it");
    let mut words = Aligned([7; 128]);
    run_on(&mut words.0, 32, &body("cp.async.wait_group 0;")).expect("an end");
    assert_eq!(words.0, [7; 128]);
}

#[test]
fn what_cannot_be_reached_ends_the_launch() {
    let beyond = run_on(&mut [0; 31], 32, "st.global.u32 [%rd3], %r1;");
    assert!(
        matches!(beyond, Err(Trouble::IllegalAddress(_))),
        "{beyond:?}"
    );
    let beside = run_on(&mut [0; 64], 32, "ld.global.v2.u32 {%r2, %r3}, [%rd3+4];");
    assert!(matches!(beside, Err(Trouble::Misaligned(_))), "{beside:?}");
    let shared = run_on(
        &mut [0; 32],
        32,
        "mov.u32 %r2, dynamic;\nst.shared.u32 [%r2+1024], %r1;",
    );
    assert!(
        matches!(shared, Err(Trouble::IllegalAddress(_))),
        "{shared:?}"
    );
    let trap = run_on(&mut [0; 32], 32, "trap;");
    assert!(matches!(trap, Err(Trouble::Trap)), "{trap:?}");
}

#[test]
fn lanes_that_wait_for_each_other_for_ever_are_told() {
    // The first lane never reaches the instruction that names it.
    let body = "
        setp.eq.s32 %p1, %r1, 0;
        @%p1 bra $L_barrier;
        bar.warp.sync -1;
        bra $L_end;
        $L_barrier:
        bar.sync 0;
        $L_end:";
    let outcome = run_on(&mut [0; 32], 32, body);
    assert!(matches!(outcome, Err(Trouble::Stuck(_))), "{outcome:?}");
}

/// A thread asks for a copy, and all threads wait for it, of which each writes a word.
#[test]
fn a_bulk_copy_comes_at_its_barrier() {
    let mut words: Vec<u32> = (0..128).collect();
    let body = "
        mov.u32 %r2, dynamic;
        setp.ne.s32 %p1, %r1, 0;
        @%p1 bra $L_begun;
        mbarrier.init.shared.b64 [%r2], 1;
        $L_begun:
        bar.sync 0;
        @%p1 bra $L_asked;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;
        add.s32 %r3, %r2, 16;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 256, [%r2];
        $L_asked:
        {
        .reg .pred done;
        again:
        mbarrier.try_wait.parity.shared.b64 done, [%r2], 0;
        @!done bra again;
        }
        shl.b32 %r4, %r1, 2;
        add.s32 %r5, %r2, %r4;
        ld.shared.u32 %r6, [%r5+16];
        bar.sync 1, 64;
        st.global.u32 [%rd3+256], %r6;";
    run_on(&mut words, 64, body).expect("an end");
    assert_eq!(words[64..], words[..64]);
}

/// Each block but the last waits for the word of the next one.
#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    let mut words = [0; 33];
    words[32] = 7;
    let body = "
        mov.u32 %r2, %ctaid.x;
        mul.wide.u32 %rd4, %r2, 4;
        add.s64 %rd5, %rd1, %rd4;
        again:
        ld.relaxed.gpu.global.u32 %r3, [%rd5+4];
        setp.eq.s32 %p1, %r3, 0;
        @%p1 bra again;
        add.s32 %r4, %r3, 1;
        st.relaxed.gpu.global.u32 [%rd5], %r4;";
    run_blocks(&mut words, (32, 1), body).expect("an end");
    assert_eq!(words[0], 39);
}

/// Comparison with plain products, with each element in the instruction's layout.
#[test]
fn a_matrix_product_is_that_of_its_fragments() {
    let half = |value: usize| u32::from(half::f16::from_f32(value as f32).to_bits());
    let a = |row: usize, k: usize| (row * 3 + k * 5) % 7;
    let b = |k: usize, column: usize| (k * 2 + column * 11) % 5;
    // Six words of each lane, then its four results.
    let mut words = vec![0_u32; 32 * 10];
    for lane in 0..32 {
        let (row, k) = (lane / 4, 2 * (lane % 4));
        let of_a = |row, k| half(a(row, k)) | half(a(row, k + 1)) << 16;
        let of_b = |k, column| half(b(k, column)) | half(b(k + 1, column)) << 16;
        let own = [
            of_a(row, k),
            of_a(row + 8, k),
            of_a(row, k + 8),
            of_a(row + 8, k + 8),
            of_b(k, row),
            of_b(k + 8, row),
        ];
        words[10 * lane..][..6].copy_from_slice(&own);
    }
    let body = "
        mul.wide.u32 %rd4, %r1, 40;
        add.s64 %rd5, %rd1, %rd4;
        ld.global.v2.u32 {%r2, %r3}, [%rd5];
        ld.global.v2.u32 {%r4, %r5}, [%rd5+8];
        ld.global.v2.u32 {%r6, %r7}, [%rd5+16];
        mov.f32 %f1, 0f3F800000;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2,%f3,%f4,%f5}, {%r2,%r3,%r4,%r5}, {%r6,%r7}, {%f1,%f1,%f1,%f1};
        st.global.v2.f32 [%rd5+24], {%f2, %f3};
        st.global.v2.f32 [%rd5+32], {%f4, %f5};";
    run_on(&mut words, 32, body).expect("an end");
    for lane in 0..32 {
        for index in 0..4 {
            let (row, column) = (lane / 4 + index / 2 * 8, 2 * (lane % 4) + index % 2);
            let expected: usize = (0..16).map(|k| a(row, k) * b(k, column)).sum();
            let found = f32::from_bits(words[10 * lane + 6 + index]);
            assert_eq!(found, expected as f32 + 1.0, "lane {lane}, {index}");
        }
    }
}

#[test]
fn what_is_not_known_is_named() {
    for (opcode, operands) in [
        ("wgmma.fence.sync.aligned", ""),
        ("add.cc.u32", "%r1, %r2, %r3"),
        ("add.rz.f32", "%f1, %f2, %f3"),
        ("mul.ftz.f32", "%f1, %f2, %f3"),
        ("mul.hi.u16", "%r1, %r2, %r3"),
        ("setp.lt.and.s32", "%p1, %r1, %r2, %p2"),
        ("ld.acquire.gpu.global.u32", "%r1, [%rd1]"),
        ("atom.global.exch.u32", "%r1, [%rd1], %r2"),
        ("cp.async.ca.shared.global", "[%r1], [%rd1], 16"),
        ("bar.sync", "1"),
    ] {
        let body = format!(
            ".reg .pred %p<4>;\n.reg .b32 %r<4>;\n.reg .f32 %f<4>;\n.reg .b64 %rd<4>;\n{opcode} {operands};"
        );
        let error = kernel("k", ".param .u64 k_param_0", &body).expect_err(opcode);
        assert!(error.contains(opcode), "{error}");
    }
    let parameters = ".param .u64 k_param_0,\n.param .u64 k_param_1";
    let error = kernel("k", parameters, "ret;").expect_err("two parameters");
    assert!(error.contains("more than one parameter"), "{error}");
}

fn kernel(name: &str, parameters: &str, body: &str) -> Result<(), String> {
    let text = format!("{HEAD}.visible .entry {name}(\n{parameters}\n)\n{{\n{body}\nret;\n}}\n");
    Module::new(text)?.kernel(name).map(drop)
}

/// Values on and next to the middle between two halves, where a second rounding goes wrong.
#[test]
fn a_half_of_an_odd_number_is_rounded_once() {
    let value = |bits: u16| match bits {
        // The next one, if there were no infinity.
        0x7C00 => 65_536.0,
        _ => f16::from_bits(bits).to_f64(),
    };
    for bits in 0..0x7C00_u16 {
        let (half, middle) = (value(bits), (value(bits) + value(bits + 1)) / 2.0);
        let even = bits + (bits & 1);
        let rounded = [
            (half, bits),
            (middle.next_down(), bits),
            (middle, even),
            (middle.next_up(), bits + 1),
        ];
        for (value, expected) in rounded {
            let [found, negated] = [value, -value].map(|it| f16::from_f32(to_odd(it)).to_bits());
            assert_eq!(found, expected, "{value:e}");
            assert_eq!(negated, expected | 0x8000, "{value:e}");
        }
    }
}
