//! What the deaths that a request was part of say about it.
//!
//! Replays are exact: a request that kills by what it is does so at the same step, again. So two
//! deaths without getting past that step make a suspect, and getting past it is an acquittal,
//! in company as well as alone. Counting all deaths of a long stream instead would make a
//! suspect of every stream on a machine that fails now and then.
//!
//! A death alone proves it if the child died as it did before. One that died in another way may
//! have had bad luck on a bad machine, which is not likely twice.
//!
//! Where children also keep dying of what this request cannot have caused, bad luck is likely, and
//! there it takes two deaths alone more. If chance hits one turn in fourteen and has eight ways to do
//! it, two deaths in the same way or three convict one innocent suspect in seventy; two more, one
//! in fifteen thousand.

/// Deaths at one step from which on a request runs alone.
const DEATHS_OF_A_SUSPECT: u32 = 2;

/// The first token behind a death comes out of the replayed prompt, the second out of a decode
/// step. The fatal step was one of the two, and a child may die just after its token has left.
const TOKENS_OF_AN_ACQUITTAL: u32 = 2;

/// Deaths alone that prove it whatever their causes.
const DEATHS_OF_A_KILLER: u32 = 2;
/// As many more where the machine kills by itself.
const MORE_ON_A_BAD_MACHINE: u32 = 2;
/// Deaths that a request had no part in, from which on a machine does so.
const DEATHS_OF_A_BAD_MACHINE: u32 = 5;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Suspicion {
    deaths: u32,
    /// Those of them at which it was a suspect and the child had nothing else.
    alone: u32,
    /// Tokens it had at the last of them.
    at: u32,
    /// The last one's, as in /health.
    label: Option<&'static str>,
    repeats_itself: bool,
}

impl Suspicion {
    /// It was with a child that died of `label`, which may have been its doing.
    pub fn present_at_death(&mut self, tokens: u32, label: &'static str) {
        if self.is_acquitted_at(tokens) {
            *self = Self::default();
        }
        self.deaths += 1;
        self.at = tokens;
        self.repeats_itself = self.label.replace(label) == Some(label);
    }

    /// The death that it was just told of was its own: a suspect, alone with the child.
    pub fn alone_at_death(&mut self) {
        self.alone += 1;
    }

    /// `all_deaths`: of children, lately, whoever was with them.
    pub fn is_proven(self, all_deaths: u32) -> bool {
        let others = all_deaths.saturating_sub(self.deaths);
        let needed = match others >= DEATHS_OF_A_BAD_MACHINE {
            true => DEATHS_OF_A_KILLER + MORE_ON_A_BAD_MACHINE,
            false => DEATHS_OF_A_KILLER,
        };
        self.alone >= needed || (self.alone + 1 == needed && self.repeats_itself)
    }

    pub fn is_suspect(self) -> bool {
        self.deaths >= DEATHS_OF_A_SUSPECT
    }

    pub fn is_acquitted_at(self, tokens: u32) -> bool {
        tokens >= self.at + TOKENS_OF_AN_ACQUITTAL
    }

    /// For a message.
    pub fn deaths(self) -> u32 {
        self.deaths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_deaths_at_one_step_make_a_suspect() {
        let mut suspicion = Suspicion::default();
        suspicion.present_at_death(7, "signalled");
        assert!(!suspicion.is_suspect());
        suspicion.present_at_death(7, "panic");
        assert!(suspicion.is_suspect());
        assert!(!suspicion.is_acquitted_at(8) && suspicion.is_acquitted_at(9));
        assert!(!suspicion.is_proven(2), "it was never alone");
    }

    #[test]
    fn a_death_alone_proves_it_if_it_is_like_the_last_one() {
        let mut suspicion = Suspicion::default();
        for label in ["signalled", "signalled", "panic"] {
            suspicion.present_at_death(7, label);
        }
        suspicion.alone_at_death();
        assert!(!suspicion.is_proven(3), "another way to die");
        let mut again = suspicion;
        again.present_at_death(7, "panic");
        again.alone_at_death();
        assert!(again.is_proven(4));
        suspicion.present_at_death(7, "device");
        suspicion.alone_at_death();
        assert!(suspicion.is_proven(4), "twice is no bad luck");
    }

    #[test]
    fn on_a_machine_that_kills_by_itself_it_takes_two_deaths_alone_more() {
        let others = DEATHS_OF_A_BAD_MACHINE;
        let alike = ["signalled"; 6];
        let mixed = ["panic", "device", "panic", "device", "panic", "device"];
        for (labels, deaths_alone) in [(alike, 3), (mixed, 4)] {
            let mut suspicion = Suspicion::default();
            for (deaths, label) in (1..).zip(labels) {
                suspicion.present_at_death(7, label);
                if deaths > DEATHS_OF_A_SUSPECT {
                    suspicion.alone_at_death();
                }
                let alone = deaths.saturating_sub(DEATHS_OF_A_SUSPECT);
                assert_eq!(suspicion.is_proven(deaths + others), alone >= deaths_alone);
                let is_on_a_good_one = suspicion.is_proven(deaths + others - 1);
                assert_eq!(
                    is_on_a_good_one,
                    alone >= deaths_alone - MORE_ON_A_BAD_MACHINE
                );
            }
        }
    }

    #[test]
    fn any_number_of_deaths_with_progress_between_makes_none() {
        let mut suspicion = Suspicion::default();
        for tokens in (0..200).step_by(2) {
            suspicion.present_at_death(tokens, "signalled");
            assert!(!suspicion.is_suspect());
        }
    }

    #[test]
    fn one_token_and_death_again_is_no_progress() {
        let mut suspicion = Suspicion::default();
        for tokens in 0..3 {
            suspicion.present_at_death(tokens, "signalled");
        }
        assert!(suspicion.is_suspect());
        assert_eq!(suspicion.deaths(), 3);
    }
}
