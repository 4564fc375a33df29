//! Kernel: its instructions, and the memory of each block and thread.

use super::assign::{Constants, assign};
use super::lower::lower;
use super::names::{Counts, Names};
use super::op::{Instruction, Op};
use super::reader::{Operand, Statement, statements};
use std::collections::HashMap;

/// Kernel that can be run.
#[derive(Debug)]
pub struct Kernel {
    /// Bytes of all parameters, with the gaps between them.
    pub parameter_bytes: usize,
    pub instructions: Vec<Instruction>,
    pub counts: Counts,
    /// Constants, in the first registers of each file.
    pub constants: Constants,
    /// Static shared memory of a block.
    pub shared_bytes: usize,
    /// Local memory of a thread.
    pub local_bytes: usize,
    /// Addresses of the module's variables, eight bytes each.
    pub globals: Vec<u64>,
}

/// Alignment of dynamic shared memory: the largest that a kernel requires.
const DYNAMIC_ALIGNMENT: u64 = 128;

impl Kernel {
    /// Parses a kernel, given the text before all kernels.
    ///
    /// # Errors
    /// The unsupported construct.
    pub(super) fn read(
        before: &str,
        globals: &[(String, Box<[u64]>)],
        text: &str,
    ) -> Result<Self, String> {
        let (head, body) = text.split_once("\n{").ok_or("a kernel without a body")?;
        let body = body.rsplit_once('}').ok_or("a body without an end")?.0;
        let mut names = Names::default();
        names.open();
        let parameter_bytes = parameters(head, &mut names)?;
        for (name, memory) in globals {
            names.variables.insert(name, memory.as_ptr() as u64);
        }
        let statements = statements(body)?;
        let mut shared = 0;
        let mut local = 0;
        for statement in &statements {
            let Statement::Declaration(text) = statement else {
                continue;
            };
            if let Some(rest) = text.strip_prefix("shared") {
                variable(rest, &mut shared, &mut names)?;
            } else if let Some(rest) = text.strip_prefix("local") {
                variable(rest, &mut local, &mut names)?;
            }
        }
        shared = shared.next_multiple_of(DYNAMIC_ALIGNMENT);
        for line in before.lines() {
            if let Some(rest) = line.strip_prefix(".extern .shared") {
                let name = rest
                    .trim()
                    .trim_end_matches("[];")
                    .split_whitespace()
                    .last();
                names.variables.insert(name.ok_or("no name")?, shared);
            }
        }
        let mut instructions = instructions(&statements, &mut names)?;
        let constants = assign(&mut instructions, &mut names.counts);
        Ok(Self {
            parameter_bytes,
            instructions,
            counts: names.counts,
            constants,
            shared_bytes: shared as usize,
            local_bytes: local.next_multiple_of(16) as usize,
            globals: globals
                .iter()
                .map(|(_, memory)| memory.as_ptr() as u64)
                .collect(),
        })
    }
}

/// `.param .align 8 .b8 name[56]` or `.param .u64 name`.
fn parameters<'a>(head: &'a str, names: &mut Names<'a>) -> Result<usize, String> {
    let (_, list) = head.split_once('(').ok_or("no parameters")?;
    let list = list.rsplit_once(')').map_or(list, |(list, _)| list);
    let mut end = 0;
    for text in list
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        let rest = text
            .strip_prefix(".param")
            .ok_or_else(|| format!("{text} is no parameter"))?;
        if end > 0 {
            // The driver copies one.
            return Err("more than one parameter".to_owned());
        }
        variable(rest, &mut end, names)?;
    }
    Ok(end as usize)
}

/// ` .align 8 .b8 name[56]`, behind `end` bytes of its space.
fn variable<'a>(text: &'a str, end: &mut u64, names: &mut Names<'a>) -> Result<(), String> {
    let mut words = text.split_whitespace();
    let (mut alignment, mut size, mut name) = (None, 1, "");
    while let Some(word) = words.next() {
        match word {
            ".align" => alignment = words.next().and_then(|it| it.parse().ok()),
            kind if kind.starts_with('.') => size = bytes_of(&kind[1..])? as u64,
            last => name = last,
        }
    }
    let (name, count) = match name.strip_suffix(']').and_then(|it| it.split_once('[')) {
        Some((name, count)) => (
            name,
            count
                .parse()
                .map_err(|_| format!("{text} is no variable"))?,
        ),
        None => (name, 1_u64),
    };
    let offset = end.next_multiple_of(alignment.unwrap_or(size));
    names.variables.insert(name, offset);
    *end = offset + size * count;
    Ok(())
}

/// Bytes of a type such as `f32`.
///
/// # Errors
/// The type is unknown.
pub fn bytes_of(kind: &str) -> Result<usize, String> {
    match kind {
        "b8" | "u8" | "s8" => Ok(1),
        "b16" | "u16" | "s16" | "f16" => Ok(2),
        "b32" | "u32" | "s32" | "f32" => Ok(4),
        "b64" | "u64" | "s64" => Ok(8),
        other => Err(format!("type {other}")),
    }
}

fn instructions<'a>(
    statements: &[Statement<'a>],
    names: &mut Names<'a>,
) -> Result<Vec<Instruction>, String> {
    let mut all = Vec::with_capacity(statements.len());
    // Labels of the open scopes, and branches to labels that may follow them.
    let mut scopes = vec![(HashMap::new(), Vec::new())];
    for statement in statements {
        let (labels, branches) = scopes.last_mut().ok_or("a scope without a beginning")?;
        match statement {
            Statement::Open => {
                names.open();
                scopes.push((HashMap::new(), Vec::new()));
            }
            Statement::Close => {
                names.close();
                let outward = resolve(&mut all, &scopes.pop().unwrap_or_default());
                let (_, branches) = scopes.last_mut().ok_or("a scope without a beginning")?;
                branches.extend(outward);
            }
            Statement::Label(name) => {
                labels.insert(*name, all.len());
            }
            Statement::Declaration(text) => {
                if let Some(rest) = text.strip_prefix("reg") {
                    names.declare_registers(rest)?;
                }
            }
            Statement::Instruction(text) => {
                if let ("bra", [Operand::Name(label)]) = (text.opcode[0], text.operands.as_slice())
                {
                    branches.push((all.len(), *label));
                }
                lower(text, names, &mut all)
                    .map_err(|what| format!("{}: {what}", text.opcode.join(".")))?;
            }
        }
    }
    for scope in scopes {
        if let Some((_, label)) = resolve(&mut all, &scope).first() {
            return Err(format!("no label {label}"));
        }
    }
    all.push(Instruction {
        guard: None,
        op: Op::Exit,
    });
    Ok(all)
}

/// Labels of a scope, and its branches.
type Scope<'a> = (HashMap<&'a str, usize>, Vec<(usize, &'a str)>);

/// Sets the targets of a scope's branches, and returns those that lead out of it.
fn resolve<'a>(all: &mut [Instruction], (labels, branches): &Scope<'a>) -> Vec<(usize, &'a str)> {
    let mut outward = branches.clone();
    outward.retain(|(at, label)| match labels.get(label) {
        Some(target) => {
            all[*at].op = Op::Branch(*target);
            false
        }
        None => true,
    });
    outward
}
