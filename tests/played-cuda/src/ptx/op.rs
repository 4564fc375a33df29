//! Instructions of the machine. Registers are numbered in three files: words (16 and 32 bits, and floats), longs (64
//! bits) and predicates.

/// Number of a register in its file.
pub type Slot = usize;

/// Register of each lane, or a value for all.
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

/// Guard: lanes with the other predicate do nothing.
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
    /// Global, or local by the address.
    Generic,
}

/// Address in memory: base and offset.
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

/// Element of a load or a store.
#[derive(Debug, Clone, Copy)]
pub struct Element {
    pub bytes: usize,
    /// Loads sign-extend.
    pub signed: bool,
}

/// Operation of up to four words with one result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordOp {
    Copy,
    Add,
    Subtract,
    Multiply,
    MultiplyHighSigned,
    MultiplyHighUnsigned,
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
    /// Bitwise function of three words, by a table of eight bits.
    Lop3(u8),
    Permute,
    InsertBits,
    /// Shift that brings the highest set bit to the top.
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
    /// Operates on two halves each, as do those that follow.
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

/// Type of the compared values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Signed,
    Unsigned,
    /// Ordered: false if an operand is NaN.
    Float,
    /// Unordered: true if an operand is NaN.
    FloatUnordered,
    /// True only if an operand is NaN.
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
    MaxUnsigned,
    Or,
}

#[derive(Debug, Clone, Copy)]
pub struct Atomic {
    pub op: AtomicOp,
    pub bytes: usize,
    /// Receives the previous value.
    pub to: Option<Target>,
    pub address: Address,
    pub value: Source,
}

/// Reduction over the lanes of a mask.
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
    /// Copies from global to shared memory. The operand is the number of bytes to read: the others are zeros.
    CopyAsync {
        to: Address,
        from: Address,
        bytes: usize,
        read: Option<Word>,
    },
    CommitCopies,
    /// Waits for all but the newest groups.
    WaitCopies {
        but: Option<usize>,
    },
    /// Copy of a word of bytes from global to shared memory, which counts at a barrier in shared memory.
    CopyBulk {
        to: Address,
        from: Address,
        bytes: Word,
        at: Address,
    },
    /// Initializes a barrier in shared memory for so many arrivals.
    StartBarrier(Address, Word),
    /// So many arrivals at a barrier in shared memory, or one that also makes it wait for so many bytes.
    Arrive {
        at: Address,
        count: Word,
        are_bytes: bool,
    },
    /// Whether the phase of this parity is over, at a barrier in shared memory.
    TryWait(Slot, Address, Word),
    Branch(usize),
    Exit,
    Trap,
    /// Barrier of the block, or one with this number for so many threads.
    Barrier(Option<[Word; 2]>),
    /// Barrier with a vote: whether the predicate holds for all threads.
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
    /// Whether the predicate holds for a lane of the mask.
    VoteAny(Slot, Predicate, Word),
    ActiveMask(Slot),
    LoadMatrix([Slot; 4], Address),
    MatrixProduct {
        to: [Slot; 4],
        a: [Word; 4],
        b: [Word; 2],
        c: [Word; 4],
    },
    /// No operation: writes are visible at once here.
    Fence,
}

/// Lanes of an instruction.
#[derive(Debug, Clone, Copy)]
pub enum Members {
    All,
    /// Lanes of a mask that is the same for all of them.
    Of(Word),
}

impl Op {
    /// Lanes that must converge for the instruction; `None` for other instructions.
    #[must_use]
    pub fn members(&self) -> Option<Members> {
        match self {
            Self::SyncWarp(mask)
            | Self::Shuffle { mask, .. }
            | Self::Reduce(_, _, _, mask)
            | Self::MatchAny(_, _, mask)
            | Self::VoteAny(_, _, mask) => Some(Members::Of(*mask)),
            Self::LoadMatrix(..) | Self::MatrixProduct { .. } => Some(Members::All),
            _ => None,
        }
    }
}

/// Mark of local addresses; no other memory is there.
pub const LOCAL_ADDRESSES: u64 = 1 << 62;
