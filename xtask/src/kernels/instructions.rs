//! A check that the machine code is what was meant: a kernel that stops using tensor cores or
//! copies that run beside it, or that spills registers to memory, is still correct, and slow.
//!
//! `HMMA` is `mma.sync` and `HGMMA` Hopper's `wgmma`, which only kernels may use that were shown to
//! add in the same order (`docs/internals/decisions/cuda.md`). `LDGSTS` is `cp.async`, `UBLKCP` a bulk copy,
//! `UTMALDG` one of a tensor map's box, `LDL` and `STL` are memory that stands in for registers.

use super::toolkit::path_with;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A change of the rules has everything looked at again.
pub const THIS_FILE: &str = include_str!("instructions.rs");

/// A rule for every kernel of `unit` whose name begins with `kernel`, on every one of `on`.
struct Rule {
    unit: &'static str,
    kernels: &'static str,
    on: &'static [&'static str],
    what: Bound,
}

enum Bound {
    /// Instructions of which at least one must be there.
    Uses(&'static [&'static str]),
    /// Instructions of which at most so many may be there, all together.
    Within(&'static [&'static str], usize),
}

const EVERYWHERE: &[&str] = &["sm_80", "sm_89", "sm_90a", "sm_100a"];
const HOPPER: &[&str] = &["sm_90a"];
/// Those that have bulk copies.
const HOPPER_AND_LATER: &[&str] = &["sm_90a", "sm_100a"];
const SPILLS: &[&str] = &["LDL", "STL"];
const TENSOR_CORES: &[&str] = &["HMMA"];
/// Copies to shared memory that run beside the threads.
const COPIES: &[&str] = &["LDGSTS", "UBLKCP"];

const fn rule(
    unit: &'static str,
    kernels: &'static str,
    on: &'static [&'static str],
    what: Bound,
) -> Rule {
    Rule {
        unit,
        kernels,
        on,
        what,
    }
}

/// For the step in one launch, of which there are several units.
const fn step_rule(unit: &'static str, uses: &'static [&'static str]) -> Rule {
    rule(unit, "decode_step_", HOPPER_AND_LATER, Bound::Uses(uses))
}

const RULES: &[Rule] = &[
    rule(
        "matmul_few",
        "matmul_few_",
        EVERYWHERE,
        Bound::Uses(TENSOR_CORES),
    ),
    rule(
        "matmul_many",
        "matmul_many_",
        EVERYWHERE,
        Bound::Uses(TENSOR_CORES),
    ),
    rule(
        "matmul_many",
        "matmul_many_",
        EVERYWHERE,
        Bound::Uses(COPIES),
    ),
    rule(
        "matmul_wide",
        "matmul_warps_",
        HOPPER,
        Bound::Uses(TENSOR_CORES),
    ),
    rule(
        "matmul_wide",
        "matmul_warps_",
        HOPPER,
        Bound::Uses(&["UTMALDG"]),
    ),
    rule(
        "matmul_wide",
        "matmul_wide_",
        HOPPER,
        Bound::Uses(&["HGMMA"]),
    ),
    rule(
        "matmul_wide",
        "matmul_wide_",
        HOPPER,
        Bound::Uses(&["UBLKCP"]),
    ),
    rule(
        "matmul_wide",
        "matmul_wide_",
        HOPPER,
        Bound::Uses(&["UTMALDG"]),
    ),
    rule(
        "attention_wgmma",
        "attention_wide_",
        HOPPER,
        Bound::Uses(&["HGMMA"]),
    ),
    rule(
        "attention_wgmma",
        "attention_wide_",
        HOPPER,
        Bound::Uses(&["UBLKCP"]),
    ),
    rule(
        "attention",
        "attention_together_",
        EVERYWHERE,
        Bound::Uses(TENSOR_CORES),
    ),
    rule(
        "attention",
        "attention_split_",
        EVERYWHERE,
        Bound::Uses(TENSOR_CORES),
    ),
    rule("experts", "experts_", EVERYWHERE, Bound::Uses(TENSOR_CORES)),
    rule("experts", "experts_", EVERYWHERE, Bound::Uses(COPIES)),
    rule(
        "experts_wide",
        "experts_wide_",
        HOPPER,
        Bound::Uses(&["HGMMA"]),
    ),
    rule(
        "experts_wide",
        "experts_wide_",
        HOPPER,
        Bound::Uses(&["UBLKCP"]),
    ),
    rule(
        "experts_wide",
        "experts_wide_",
        HOPPER,
        Bound::Uses(&["UTMALDG"]),
    ),
    step_rule("decode_step", TENSOR_CORES),
    step_rule("decode_step", &["UBLKCP"]),
    step_rule("decode_step", &["USETMAXREG"]),
    step_rule("decode_step_any", TENSOR_CORES),
    step_rule("decode_step_any", &["UBLKCP"]),
    step_rule("decode_step_any", &["USETMAXREG"]),
    step_rule("decode_step_large", TENSOR_CORES),
    step_rule("decode_step_large", &["UBLKCP"]),
    step_rule("decode_step_large", &["USETMAXREG"]),
    step_rule("decode_step_experts", TENSOR_CORES),
    step_rule("decode_step_experts", &["UBLKCP"]),
    step_rule("decode_step_experts", &["USETMAXREG"]),
];

/// A handful at a kernel's ends is some architecture's way to find its registers; a loop that
/// spills has dozens.
const FEW_SPILLS: usize = 8;

/// Kernels that may spill more, by the beginning of their names, and how much. A bound is what
/// there was when the kernel was measured, and a little more.
const KNOWN_SPILLS: &[(&str, usize)] = &[
    // The whole step in one kernel holds values across its stages. One row of heads of 64 columns has
    // the room for those of products, whose chain a spill would lengthen (bench/results/cuda.md). What is
    // left are places of a layer's loop in the blocks that compute attention.
    ("decode_step_64_F16_alone", 32),
    ("decode_step_64_Q8_0_alone", 32),
    ("decode_step_64_any_alone", 32),
    ("decode_step_", 128),
    // Two accumulators of 64 rows, scores and outputs, in the registers of a thread.
    ("attention_wide_128", 16),
    ("attention_wide_near_128", 16),
    // F32 weights, which no file for serving has, take two registers for each of other types.
    ("matmul_few_F32_4", 64),
    // Accumulators of 128 rows in each of four warpgroups leave few registers for what loops share.
    ("matmul_wide_", 232),
    // Five blocks a multiprocessor; what is spilled are places in front of the loop.
    ("matmul_warps_", 16),
    // Two blocks a multiprocessor, so that one copies while the other multiplies: sums of two accumulators, and
    // the weights of four tiles. What is spilled is loaded at one of two ends, that of pairs or that of one part.
    ("experts_many_", 144),
    // Three warpgroups, of which each holds the sums of a share; units of F32 take twice the registers. What is spilled are
    // places of a piece of work, at its ends.
    ("experts_wide_F32_", 288),
    ("experts_wide_", 144),
    // On Blackwell: its rows, which it makes itself, beside the weights of two tiles.
    ("products_few", 48),
    // Rows that are loaded ahead.
    ("experts_walk_", 96),
    // Runs once, at load.
    ("repack", 64),
];

/// Kernels that may use `wgmma`, because they were shown to give the bits of `mma.sync`.
const WGMMA_KERNELS: &[&str] = &["matmul_wide_", "experts_wide_", "attention_wide_"];

/// One kernel of one architecture, and how often each instruction appears in it.
type Counts = BTreeMap<(String, String), BTreeMap<String, usize>>;

/// Checks all kernels and returns how many there were, over all architectures.
pub fn check(disassembler: &Path, unit: &str, fatbin: &Path, codes: &[&str]) -> Result<usize> {
    let counts = disassemble(disassembler, fatbin)?;
    let mut complaints = complaints(unit, &counts, codes);
    if codes.contains(&"compute_80") {
        let text = Command::new(disassembler)
            .arg("--list-ptx")
            .arg(fatbin)
            .output()
            .context("cuobjdump")?;
        if !String::from_utf8_lossy(&text.stdout).contains("sm_80") {
            complaints.push(format!("{unit}: there is no text for later architectures"));
        }
    }
    if complaints.is_empty() {
        return Ok(counts.len());
    }
    bail!(
        "the kernels are not what they are meant to be:\n{}",
        complaints.join("\n")
    )
}

fn complaints(unit: &str, counts: &Counts, codes: &[&str]) -> Vec<String> {
    let mut complaints = Vec::new();
    for rule in RULES.iter().filter(|rule| rule.unit == unit) {
        for code in rule.on.iter().filter(|code| codes.contains(code)) {
            let mut seen = 0;
            for ((_, kernel), found) in counts
                .iter()
                .filter(|((on, kernel), _)| on == code && kernel.starts_with(rule.kernels))
            {
                seen += 1;
                complaints.extend(complaint(&rule.what, code, kernel, found));
            }
            if seen == 0 {
                complaints.push(format!("{code}: no kernel is called {}…", rule.kernels));
            }
        }
    }
    for ((code, kernel), found) in counts {
        let known = KNOWN_SPILLS
            .iter()
            .find(|(start, _)| kernel.starts_with(start));
        let most = known.map_or(FEW_SPILLS, |(_, most)| *most);
        complaints.extend(complaint(&Bound::Within(SPILLS, most), code, kernel, found));
        if !WGMMA_KERNELS.iter().any(|start| kernel.starts_with(start)) {
            let none = Bound::Within(&["HGMMA"], 0);
            complaints.extend(complaint(&none, code, kernel, found));
        }
    }
    complaints
}

fn complaint(
    what: &Bound,
    code: &str,
    kernel: &str,
    found: &BTreeMap<String, usize>,
) -> Option<String> {
    let count =
        |names: &[&str]| -> usize { names.iter().filter_map(|name| found.get(*name)).sum() };
    match what {
        Bound::Uses(names) if count(names) == 0 => Some(format!(
            "{code}: {kernel} uses no {}",
            names.join(" and no ")
        )),
        Bound::Within(names, most) if count(names) > *most => Some(format!(
            "{code}: {kernel} has {} {}, where {most} are allowed",
            count(names),
            names.join(" and "),
        )),
        Bound::Uses(_) | Bound::Within(..) => None,
    }
}

fn disassemble(disassembler: &Path, fatbin: &Path) -> Result<Counts> {
    let mut program = Command::new(disassembler)
        .arg("--dump-sass")
        .arg(fatbin)
        .env("PATH", path_with(disassembler))
        .stdout(Stdio::piped())
        .spawn()
        .context("cuobjdump")?;
    let text = BufReader::new(program.stdout.take().context("piped")?);
    let counts = count(text.lines().map_while(Result::ok));
    let status = program.wait()?;
    ensure!(status.success(), "cuobjdump ended with {status}");
    Ok(counts)
}

/// Lines such as `arch = sm_90a`, `Function : argmax` and
/// `/*0a10*/  @!P0 LDGSTS.E.BYPASS.128 [R4], [R6.64] ;`.
fn count(lines: impl Iterator<Item = String>) -> Counts {
    let mut counts = Counts::new();
    let (mut code, mut kernel) = (String::new(), None);
    for line in lines {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("arch = ") {
            (code, kernel) = (name.to_owned(), None);
        } else if let Some(name) = line.strip_prefix("Function : ") {
            let key = (code.clone(), name.to_owned());
            counts.entry(key.clone()).or_default();
            kernel = Some(key);
        } else if let (Some(kernel), Some(name)) = (&kernel, instruction(line)) {
            let of_kernel = counts.entry(kernel.clone()).or_default();
            *of_kernel.entry(name.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Name of the line's instruction without modifiers; `None` for lines that hold none.
fn instruction(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let mut words = rest.split_whitespace();
    let name = words.find(|word| !word.starts_with('@'))?;
    let name = name.split(['.', ';']).next()?;
    name.starts_with(|c: char| c.is_ascii_uppercase())
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Fatbin elf code:
================
arch = sm_90a
\t\tFunction : matmul_many_F16_64
        /*0000*/                   LDC R1, c[0x0][0x28] ;      /* 0x00000a00ff017b82 */
                                                               /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDGSTS.E.BYPASS.128 [R4], [R6.64] ;   /* 0x01 */
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;      /* 0x02 */
\t\tFunction : argmax
        /*0000*/                   STL.64 [R1], R2 ;           /* 0x03 */
        /*0010*/                   LDL.64 R2, [R1] ;           /* 0x04 */
arch = sm_80
\t\tFunction : argmax
        /*0000*/                   EXIT ;                      /* 0x04 */
";

    fn counts() -> Counts {
        count(TEXT.lines().map(str::to_owned))
    }

    #[test]
    fn instructions_are_counted_by_architecture_and_kernel() {
        let counts = counts();
        let of = |code: &str, kernel: &str| counts[&(code.to_owned(), kernel.to_owned())].clone();
        let expected = ["HMMA", "LDC", "LDGSTS"].map(|name| (name.to_owned(), 1));
        assert_eq!(of("sm_90a", "matmul_many_F16_64"), BTreeMap::from(expected));
        assert_eq!(
            of("sm_80", "argmax"),
            BTreeMap::from([("EXIT".to_owned(), 1)])
        );
        assert_eq!(counts.len(), 3);
    }

    #[test]
    fn what_is_missing_or_too_much_is_said_by_name() {
        let mut counts = counts();
        let all = complaints("matmul_few", &counts, &["sm_90a"]).join("\n");
        let words = "sm_90a: no kernel is called matmul_few_…";
        assert!(all.contains(words), "{words} is not in:\n{all}");
        assert!(
            !all.contains("matmul_many") && !all.contains("argmax"),
            "{all}"
        );
        let argmax = ("sm_90a".to_owned(), "argmax".to_owned());
        let spills = counts
            .get_mut(&argmax)
            .and_then(|found| found.get_mut("STL"));
        *spills.expect("one") = FEW_SPILLS;
        let all = complaints("kernels", &counts, &["sm_90a"]).join("\n");
        assert!(
            all.contains("argmax has 9 LDL and STL, where 8 are allowed"),
            "{all}"
        );
        let found = BTreeMap::from([("HGMMA".to_owned(), 2)]);
        assert!(complaint(&Bound::Uses(TENSOR_CORES), "sm_80", "k", &found).is_some());
        assert!(complaint(&Bound::Within(&["HGMMA"], 1), "sm_80", "k", &found).is_some());
        assert!(complaint(&Bound::Within(&["HGMMA"], 2), "sm_80", "k", &found).is_none());
    }
}
