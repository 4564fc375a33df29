//! Warp: position of each lane, and scheduling of its lanes.

use super::memory::{Bytes, Copies, Memory};
use super::registers::{LANES, Mask, Registers, lanes};
use super::{Launch, Trouble};
use crate::ptx::Kernel;
use crate::ptx::op::{Instruction, Members, Op, Predicate, Slot, Word};

/// Reason for a warp's pause.
pub enum Pause {
    End,
    /// All live lanes have reached the block's barrier.
    Barrier,
    Slice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    /// Waits for other lanes, which the instruction names.
    Waiting,
    AtBarrier,
}

/// Lanes at the same instruction.
#[derive(Debug, Clone, Copy)]
struct Group {
    at: usize,
    lanes: Mask,
    state: State,
}

pub struct Warp<'a> {
    kernel: &'a Kernel,
    pub(super) launch: &'a Launch,
    /// Index in the block.
    index: usize,
    pub(super) place: [u32; 3],
    pub(super) threads: [[u32; 3]; LANES],
    pub(super) registers: Registers,
    /// Local memory, lane by lane.
    pub(super) local: Bytes,
    pub(super) copies: Copies,
    groups: Vec<Group>,
}

/// Effect of an instruction on a group.
enum Step {
    Next,
    /// The position is set, and there is no other group.
    Jumped,
    /// The groups must be examined again.
    Regroup,
}

impl<'a> Warp<'a> {
    pub fn new(kernel: &'a Kernel, launch: &'a Launch, index: usize) -> Self {
        let [x, y, _] = launch.block;
        let threads = std::array::from_fn(|lane| {
            let thread = (index * LANES + lane) as u32;
            [thread % x, thread / x % y, thread / (x * y)]
        });
        Self {
            kernel,
            launch,
            index,
            place: [0; 3],
            threads,
            registers: Registers::new(kernel),
            local: Bytes::new(kernel.local_bytes * LANES),
            copies: Copies::default(),
            groups: Vec::new(),
        }
    }

    /// Puts all lanes at the first instruction, for the block at this position.
    pub fn begin(&mut self, place: [u32; 3]) {
        let threads = self.launch.block.iter().product::<u32>() as usize;
        let count = (threads - self.index * LANES).min(LANES);
        self.place = place;
        self.copies = Copies::default();
        self.groups.clear();
        self.groups.push(Group {
            at: 0,
            lanes: Mask::MAX >> (LANES - count),
            state: State::Ready,
        });
    }

    pub(super) fn local_bytes(&self) -> usize {
        self.kernel.local_bytes
    }

    /// Runs at most `slice` instructions.
    ///
    /// # Errors
    /// An instruction fails, or no lane can proceed.
    pub fn run(&mut self, memory: &mut Memory<'_>, slice: u32) -> Result<Pause, Trouble> {
        let mut left = slice;
        loop {
            let Some(first) = self.furthest_back() else {
                if self.groups.is_empty() {
                    return Ok(Pause::End);
                }
                if self.groups.iter().all(|it| it.state == State::AtBarrier) {
                    return Ok(Pause::Barrier);
                }
                self.wake()?;
                continue;
            };
            if left == 0 {
                return Ok(Pause::Slice);
            }
            self.merge_into(first, State::Ready);
            // Merging may have moved it.
            let first = self.furthest_back().unwrap_or(0);
            let others = self.groups.iter().enumerate();
            let others = others.filter(|(index, it)| *index != first && it.state == State::Ready);
            let limit = others.map(|(_, it)| it.at).min().unwrap_or(usize::MAX);
            while left > 0 && self.groups[first].at < limit {
                left -= 1;
                match self.step(first, memory)? {
                    Step::Next => self.groups[first].at += 1,
                    Step::Jumped => {}
                    Step::Regroup => break,
                }
            }
        }
    }

    fn furthest_back(&self) -> Option<usize> {
        let ready = self.groups.iter().enumerate();
        let ready = ready.filter(|(_, group)| group.state == State::Ready);
        ready
            .min_by_key(|(_, group)| group.at)
            .map(|(index, _)| index)
    }

    /// Merges lanes that reached the same instruction.
    fn merge_into(&mut self, index: usize, state: State) {
        let at = self.groups[index].at;
        let mut all = 0;
        let mut position = 0;
        self.groups.retain(|group| {
            let is_it = position == index;
            position += 1;
            let joins = !is_it && group.at == at && group.state == state;
            if joins {
                all |= group.lanes;
            }
            !joins
        });
        let mut groups = self.groups.iter_mut();
        if let Some(group) = groups.find(|it| it.at == at && it.state == State::Ready) {
            group.lanes |= all;
        }
    }

    pub fn alive(&self) -> Mask {
        self.groups.iter().fold(0, |all, group| all | group.lanes)
    }

    /// Wakes groups that wait for lanes which have ended since.
    fn wake(&mut self) -> Result<(), Trouble> {
        let alive = self.alive();
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            if group.state == State::Waiting && self.members(group) & alive & !group.lanes == 0 {
                self.groups[index].state = State::Ready;
                return Ok(());
            }
        }
        let places: Vec<_> = self
            .groups
            .iter()
            .map(|it| (it.at, it.lanes, it.state))
            .collect();
        Err(Trouble::Stuck(format!("no lane can go on: {places:?}")))
    }

    fn members(&self, group: Group) -> Mask {
        match self.kernel.instructions[group.at].op.members() {
            None => 0,
            Some(Members::All) => Mask::MAX,
            Some(Members::Of(mask)) => self.first_of(mask, group.lanes),
        }
    }

    /// Word that is the same for all these lanes.
    pub(super) fn first_of(&self, word: Word, active: Mask) -> u32 {
        let lane = active.trailing_zeros() as usize % LANES;
        self.registers.word(word)[lane]
    }

    fn step(&mut self, index: usize, memory: &mut Memory<'_>) -> Result<Step, Trouble> {
        let kernel = self.kernel;
        let group = self.groups[index];
        let Instruction { guard, op } = &kernel.instructions[group.at];
        let active = match guard {
            None => group.lanes,
            Some(guard) => {
                let holds = self.registers.predicate(Predicate::Slot(guard.predicate));
                group.lanes & if guard.negated { !holds } else { holds }
            }
        };
        match op {
            Op::Branch(target) => return Ok(self.branch(index, active, *target)),
            Op::Exit => return Ok(self.exit(index, active)),
            _ if active == 0 => return Ok(Step::Next),
            Op::Barrier(_) | Op::BarrierAnd(..) => {
                self.groups[index].state = State::AtBarrier;
                return Ok(Step::Regroup);
            }
            _ => {}
        }
        if op.members().is_some() {
            let needed = self.members(group) & self.alive();
            if needed & !active != 0 {
                return self.wait(index, needed, active != group.lanes);
            }
        }
        self.execute(op, active, memory)?;
        Ok(Step::Next)
    }

    /// Waits for missing lanes; merges those that have arrived.
    fn wait(&mut self, index: usize, needed: Mask, is_guarded: bool) -> Result<Step, Trouble> {
        if is_guarded {
            return Err(Trouble::Stuck(
                "an instruction for lanes that it leaves out".to_owned(),
            ));
        }
        let at = self.groups[index].at;
        let waiting = self
            .groups
            .iter()
            .filter(|it| it.at == at && it.state == State::Waiting);
        let here = waiting.fold(self.groups[index].lanes, |all, it| all | it.lanes);
        if needed & !here == 0 {
            self.merge_into(index, State::Waiting);
        } else {
            self.groups[index].state = State::Waiting;
            self.merge_waiting(at);
        }
        Ok(Step::Regroup)
    }

    fn merge_waiting(&mut self, at: usize) {
        let is_it = |group: &Group| group.at == at && group.state == State::Waiting;
        let lanes = self
            .groups
            .iter()
            .filter(|it| is_it(it))
            .fold(0, |all, it| all | it.lanes);
        self.groups.retain(|it| !is_it(it));
        let state = State::Waiting;
        self.groups.push(Group { at, lanes, state });
    }

    fn branch(&mut self, index: usize, taken: Mask, target: usize) -> Step {
        let is_alone = self.groups.len() == 1;
        let group = &mut self.groups[index];
        let stay = group.lanes & !taken;
        if taken == 0 {
            return Step::Next;
        }
        if stay == 0 {
            group.at = target;
            // The group may have passed others.
            return if is_alone {
                Step::Jumped
            } else {
                Step::Regroup
            };
        }
        group.at += 1;
        group.lanes = stay;
        self.groups.push(Group {
            at: target,
            lanes: taken,
            state: State::Ready,
        });
        Step::Regroup
    }

    fn exit(&mut self, index: usize, active: Mask) -> Step {
        let group = &mut self.groups[index];
        group.lanes &= !active;
        if group.lanes == 0 {
            self.groups.swap_remove(index);
            return Step::Regroup;
        }
        Step::Next
    }

    /// Lanes at barriers: how many at which one, and of how many threads that is; `None` is the whole block.
    pub fn arrived(&self) -> impl Iterator<Item = (Option<[u32; 2]>, u32)> {
        self.at_barrier().map(|(lanes, op)| {
            let of = match op {
                Op::Barrier(of) => of.map(|of| of.map(|it| self.first_of(it, lanes))),
                _ => None,
            };
            (of, lanes.count_ones())
        })
    }

    /// Continues behind a numbered barrier.
    pub fn pass_numbered(&mut self, number: u32) {
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            if group.state == State::AtBarrier
                && let Op::Barrier(Some([of, _])) = self.kernel.instructions[group.at].op
                && self.first_of(of, group.lanes) == number
            {
                self.groups[index].state = State::Ready;
                self.groups[index].at += 1;
            }
        }
    }

    /// Whether the predicate of a voting barrier holds for all lanes.
    pub fn all_hold_at_barrier(&self) -> bool {
        self.at_barrier().all(|(lanes, op)| match op {
            Op::BarrierAnd(_, holds) => lanes & !self.registers.predicate(*holds) == 0,
            _ => true,
        })
    }

    fn at_barrier(&self) -> impl Iterator<Item = (Mask, &'a Op)> {
        let kernel = self.kernel;
        let groups = self.groups.iter().filter(|it| it.state == State::AtBarrier);
        groups.map(move |it| (it.lanes, &kernel.instructions[it.at].op))
    }

    /// Continues behind the barrier, with the vote of the whole block.
    pub fn pass_barrier(&mut self, all: Mask) {
        let answers: Vec<(Mask, Slot)> = self
            .at_barrier()
            .filter_map(|(lanes, op)| match op {
                Op::BarrierAnd(to, _) => Some((lanes, *to)),
                _ => None,
            })
            .collect();
        for (lanes, to) in answers {
            self.registers.set_predicate(to, lanes, all);
        }
        for group in &mut self.groups {
            if group.state == State::AtBarrier {
                group.state = State::Ready;
                group.at += 1;
            }
        }
    }

    /// Lanes of a mask, with each one's value of a word.
    pub(super) fn each(&self, word: Word, active: Mask) -> impl Iterator<Item = (usize, u32)> {
        let values = self.registers.word(word);
        lanes(active).map(move |lane| (lane, values[lane]))
    }
}
