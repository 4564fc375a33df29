//! Instructions as the machine runs them. Registers are numbered, in three files: words (16 and 32 bits, and
//! floats), longs (64 bits) and predicates.

/// The number of a register in its file.
pub type Slot = usize;

/// A register of each lane, or the same for all.
#[derive(Debug, Clone, Copy)]
pub enum Word {
    Slot(Slot),
    Same(u32),
}

#[derive(Debug, Clone, Copy)]
pub enum Long {
    Slot(Slot),
    Same(u64),
}

#[derive(Debug, Clone, Copy)]
pub enum Predicate {
    Slot(Slot),
    Same(bool),
}

/// Lanes whose predicate is the other way do nothing.
#[derive(Debug, Clone, Copy)]
pub struct Guard {
    pub predicate: Slot,
    pub negated: bool,
}

#[derive(Debug, Clone)]
pub struct Instruction {
    pub guard: Option<Guard>,
    pub op: Op,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Global,
    Shared,
    Local,
    Parameter,
    /// Global, or local where the address says so.
    Generic,
}

/// A place in memory: base and offset.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    pub space: Space,
    pub base: Source,
    pub offset: i64,
}

#[derive(Debug, Clone, Copy)]
pub enum Source {
    Word(Word),
    Long(Long),
}

#[derive(Debug, Clone, Copy)]
pub enum Target {
    Word(Slot),
    Long(Slot),
}

/// One element of a load or a store.
#[derive(Debug, Clone, Copy)]
pub struct Element {
    pub bytes: usize,
    /// Loads fill the register with copies of the sign.
    pub signed: bool,
}

/// Of up to four words to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordOp {
    Copy,
    Add,
    Subtract,
    Multiply,
    MultiplyHighSigned,
    MultiplyAdd,
    DivideSigned,
    DivideUnsigned,
    RemainderSigned,
    RemainderUnsigned,
    ShiftLeft,
    ShiftRightSigned,
    ShiftRightUnsigned,
    And,
    Or,
    Xor,
    Not,
    Negate,
    MaxSigned,
    MinSigned,
    MaxUnsigned,
    MinUnsigned,
    /// Of each bit, by a table of eight.
    Lop3(u8),
    Permute,
    InsertBits,
    /// Shifts that bring the highest bit that is set to the top.
    LeadingZeros,
    ReverseBits,
    CountBits,
    JoinHalves,
    SignExtend8,
    AddFloat,
    AddFloatFlushed,
    SubtractFloat,
    MultiplyFloat,
    DivideFloat,
    FusedFloat,
    /// Rounds towards minus infinity.
    FusedFloatDown,
    MaxFloat,
    MinFloat,
    AbsoluteFloat,
    NegateFloat,
    Exp2,
    Exp2Flushed,
    ReciprocalRoot,
    ReciprocalRootFlushed,
    Saturate,
    /// Of two halves each, as are those that follow.
    SubtractHalves,
    MultiplyHalves,
    FusedHalves,
    /// The first is the upper one.
    HalvesFromFloats,
    HalfFromFloat,
    FloatFromHalf,
    FloatFromSigned,
    FloatFromUnsigned,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongOp {
    Copy,
    Add,
    Subtract,
    Multiply,
    MultiplyHighUnsigned,
    DivideSigned,
    DivideUnsigned,
    RemainderSigned,
    RemainderUnsigned,
    And,
    Or,
    Xor,
    Not,
    MaxSigned,
    MinSigned,
    MaxUnsigned,
    MinUnsigned,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    Left,
    RightSigned,
    RightUnsigned,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredicateOp {
    Copy,
    And,
    Or,
    Xor,
    Not,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// How what is compared is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Signed,
    Unsigned,
    /// Nothing holds of what is no number.
    Float,
    /// Everything holds of what is no number.
    FloatUnordered,
    /// It holds of what is no number, whatever the relation.
    NoNumber,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShuffleMode {
    Butterfly,
    Up,
    Down,
    Index,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    Add,
    AddFloat,
    Or,
}

#[derive(Debug, Clone, Copy)]
pub struct Atomic {
    pub op: AtomicOp,
    pub bytes: usize,
    /// Gets what was there before.
    pub to: Option<Target>,
    pub address: Address,
    pub value: Source,
}

/// Over all lanes of a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    MaxUnsigned,
    MinSigned,
}

#[derive(Debug, Clone)]
pub enum Op {
    Word(WordOp, Slot, [Word; 4]),
    Long(LongOp, Slot, [Long; 2]),
    LongShift(Shift, Slot, Long, Word),
    LongInsertBits(Slot, [Long; 2], [Word; 2]),
    MultiplyWide {
        signed: bool,
        to: Slot,
        of: [Word; 2],
    },
    Narrow(Slot, Long),
    Join(Slot, [Word; 2]),
    Split([Slot; 2], Long),
    CompareWords(Relation, Reading, Slot, [Word; 2]),
    CompareLongs(Relation, Reading, Slot, [Long; 2]),
    Predicate(PredicateOp, Slot, [Predicate; 2]),
    ChooseWord(Slot, [Word; 2], Predicate),
    ChooseLong(Slot, [Long; 2], Predicate),
    Special(Slot, Special),
    Load(Element, Vec<Target>, Address),
    Store(Element, Vec<Source>, Address),
    Atomic(Atomic),
    /// To shared memory from global memory, and how many bytes of these are read: the others are zeros.
    CopyAsync {
        to: Address,
        from: Address,
        bytes: usize,
        read: Option<Word>,
    },
    CommitCopies,
    /// All but the newest groups.
    WaitCopies {
        but: Option<usize>,
    },
    Branch(usize),
    Exit,
    Trap,
    Barrier,
    /// Whether it holds of all threads.
    BarrierAnd(Slot, Predicate),
    SyncWarp(Word),
    Shuffle {
        mode: ShuffleMode,
        to: Slot,
        valid: Option<Slot>,
        value: Word,
        by: Word,
        clamp: Word,
        mask: Word,
    },
    Reduce(ReduceOp, Slot, Word, Word),
    MatchAny(Slot, Word, Word),
    ActiveMask(Slot),
    LoadMatrix([Slot; 4], Address),
    MatrixProduct {
        to: [Slot; 4],
        a: [Word; 4],
        b: [Word; 2],
        c: [Word; 4],
    },
    /// Everything is seen by everybody at once here.
    Fence,
}

/// Lanes that an instruction is for.
#[derive(Debug, Clone, Copy)]
pub enum Members {
    All,
    /// Of a mask that is the same for all of them.
    Of(Word),
}

impl Op {
    /// The lanes that must come together for it, where it is such an instruction.
    #[must_use]
    pub fn members(&self) -> Option<Members> {
        match self {
            Self::SyncWarp(mask)
            | Self::Shuffle { mask, .. }
            | Self::Reduce(_, _, _, mask)
            | Self::MatchAny(_, _, mask) => Some(Members::Of(*mask)),
            Self::LoadMatrix(..) | Self::MatrixProduct { .. } => Some(Members::All),
            _ => None,
        }
    }
}

/// Added to local addresses that stand for themselves: no other memory is there.
pub const LOCAL_ADDRESSES: u64 = 1 << 62;
