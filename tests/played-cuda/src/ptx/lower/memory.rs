//! Loads, stores, atomic operations, and copies to shared memory.

use super::Lowering;
use crate::ptx::kernel::bytes_of;
use crate::ptx::op::{Address, Atomic, AtomicOp, Element, Long, Op, Source, Space, Word};
use crate::ptx::reader::Operand;

impl Lowering<'_, '_> {
    pub(super) fn memory(&mut self) -> Result<(), String> {
        self.expect_known()?;
        match self.text.opcode[0] {
            "ld" => self.load(),
            "st" => self.store(),
            "cp" => self.copy_async(),
            _ => self.atomic(),
        }
    }

    /// Refuses unknown parts between name and type: space, count, and cache hints, which change no result here.
    fn expect_known(&self) -> Result<(), String> {
        let [name, parts @ .., _] = self.text.opcode.as_slice() else {
            return Err("not known".to_owned());
        };
        let is_known = |part: &&str| match *name {
            "ld" | "st" => matches!(
                *part,
                "global"
                    | "shared"
                    | "local"
                    | "param"
                    | "v2"
                    | "v4"
                    | "volatile"
                    | "relaxed"
                    | "gpu"
                    | "cg"
                    | "cs"
                    | "nc"
                    | "L1::no_allocate"
            ),
            "atom" | "red" => matches!(
                *part,
                "global" | "shared" | "relaxed" | "gpu" | "add" | "or" | "max"
            ),
            _ => true,
        };
        let unknown = parts.iter().find(|part| !is_known(part));
        unknown.map_or(Ok(()), |part| Err(format!("{part} is not known")))
    }

    fn space(&self) -> Space {
        // `shared.global` of a copy is not checked here.
        let mut parts = self.text.opcode.iter();
        let found = parts.find_map(|part| match *part {
            "global" => Some(Space::Global),
            "shared" => Some(Space::Shared),
            "local" => Some(Space::Local),
            "param" => Some(Space::Parameter),
            _ => None,
        });
        found.unwrap_or(Space::Generic)
    }

    fn address(&self, at: usize, space: Space) -> Result<Address, String> {
        let Operand::Place(name, offset) = self.operand(at)? else {
            return Err("no place".to_owned());
        };
        let base = match self.names.variables.get(name) {
            Some(variable) if self.names.register(name).is_none() => {
                Source::Long(Long::Same(*variable))
            }
            _ => self.names.source(&Operand::Name(name), 8)?,
        };
        let offset = *offset;
        Ok(Address {
            space,
            base,
            offset,
        })
    }

    fn element(&self) -> Result<Element, String> {
        let kind = self.kind();
        let bytes = bytes_of(kind)?;
        let signed = kind.starts_with('s');
        Ok(Element { bytes, signed })
    }

    /// Elements of a vector, or the single operand.
    fn elements(&self, at: usize) -> Result<Vec<Operand<'_>>, String> {
        match self.operand(at)? {
            Operand::Vector(all) => Ok(all.clone()),
            one => Ok(vec![one.clone()]),
        }
    }

    fn load(&mut self) -> Result<(), String> {
        let targets = self.elements(0)?;
        let targets = targets
            .iter()
            .map(|it| self.names.target(it))
            .collect::<Result<_, _>>()?;
        let op = Op::Load(self.element()?, targets, self.address(1, self.space())?);
        self.push(op)
    }

    fn store(&mut self) -> Result<(), String> {
        let element = self.element()?;
        let sources = self.elements(1)?;
        let sources = sources
            .iter()
            .map(|it| self.names.source(it, element.bytes))
            .collect::<Result<_, _>>()?;
        let op = Op::Store(element, sources, self.address(0, self.space())?);
        self.push(op)
    }

    fn atomic(&mut self) -> Result<(), String> {
        let bytes = self.element()?.bytes;
        let op = match (self.kind(), self.text.opcode.as_slice()) {
            ("f32", [.., "add", _]) => AtomicOp::AddFloat,
            ("u32" | "s32" | "u64", [.., "add", _]) => AtomicOp::Add,
            ("u32" | "u64", [.., "max", _]) => AtomicOp::MaxUnsigned,
            ("b32", [.., "or", _]) => AtomicOp::Or,
            _ => return Err("not known".to_owned()),
        };
        let returns = usize::from(self.text.opcode[0] == "atom");
        let to = match returns {
            1 => Some(self.names.target(self.operand(0)?)?),
            _ => None,
        };
        let address = self.address(returns, self.space())?;
        let value = self.names.source(self.operand(returns + 1)?, bytes)?;
        self.push(Op::Atomic(Atomic {
            op,
            bytes,
            to,
            address,
            value,
        }))
    }

    /// Barriers in shared memory.
    pub(super) fn barrier(&mut self) -> Result<(), String> {
        let shared = |at| self.address(at, Space::Shared);
        let op = match self.text.opcode.as_slice() {
            ["mbarrier", "init", "shared", "b64"] => Op::StartBarrier(shared(0)?, self.word(1)?),
            ["mbarrier", "arrive", "shared", "b64"] => Op::Arrive {
                at: shared(1)?,
                count: self.word(2)?,
                are_bytes: false,
            },
            ["mbarrier", "arrive", "expect_tx", "shared", "b64"] => Op::Arrive {
                at: shared(1)?,
                count: self.word(2)?,
                are_bytes: true,
            },
            [
                "mbarrier",
                "try_wait" | "test_wait",
                "parity",
                "shared",
                "b64",
            ] => Op::TryWait(self.predicate_slot(0)?, shared(1)?, self.word(2)?),
            _ => return Err("not known".to_owned()),
        };
        self.push(op)
    }

    fn copy_async(&mut self) -> Result<(), String> {
        if self.text.opcode == ["cp", "async", "bulk", "prefetch", "L2", "global"] {
            return self.push(Op::Fence);
        }
        if let ["cp", "async", "bulk", rest @ ..] = self.text.opcode.as_slice() {
            let known = ["shared::cluster", "global", "mbarrier::complete_tx::bytes"];
            if rest != known {
                return Err("not known".to_owned());
            }
            return self.push(Op::CopyBulk {
                to: self.address(0, Space::Shared)?,
                from: self.address(1, Space::Global)?,
                bytes: self.word(2)?,
                at: self.address(3, Space::Shared)?,
            });
        }
        if self.text.opcode == ["cp", "async", "commit_group"] {
            return self.push(Op::CommitCopies);
        }
        if self.text.opcode == ["cp", "async", "wait_all"] {
            return self.push(Op::WaitCopies { but: None });
        }
        let number = |at| match self.word(at)? {
            Word::Same(number) => Ok::<_, String>(number as usize),
            Word::Slot(_) => Err("a number that is none".to_owned()),
        };
        if self.text.opcode == ["cp", "async", "wait_group"] {
            let but = Some(number(0)?);
            return self.push(Op::WaitCopies { but });
        }
        if self.text.opcode != ["cp", "async", "cg", "shared", "global"] {
            return Err("not known".to_owned());
        }
        let bytes = number(2)?;
        if !matches!(bytes, 4 | 8 | 16) {
            return Err(format!("copies of {bytes} bytes"));
        }
        let op = Op::CopyAsync {
            to: self.address(0, Space::Shared)?,
            from: self.address(1, Space::Global)?,
            bytes,
            read: match self.text.operands.len() {
                4 => Some(self.word(3)?),
                _ => None,
            },
        };
        self.push(op)
    }
}
