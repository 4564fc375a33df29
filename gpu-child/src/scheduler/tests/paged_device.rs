//! A device that computes from its page contents only. It writes the given tokens there, for each group of layers,
//! reads all visible ones back through the page table, and samples the next token from them. A page that is shared
//! wrongly, written twice or freed too early changes the answer.
//!
//! A device that echoes mostly samples the token that lies a period before, so that sequences have drafts.

use super::*;

pub struct PagedDevice {
    /// Period of its echo.
    pub echoes: Option<usize>,
    /// One of so many tokens is another than that of a device without this number.
    pub errs: Option<u64>,
    /// Tokens of its vocabulary.
    pub vocab: u32,
    /// Its pages hold the tokens before each sampled one.
    pub checks_history: bool,
    /// Each group reads the pages that it wrote. Adopted pages were written elsewhere.
    pub checks_groups: bool,
    /// The group that wrote a page last.
    writers: BTreeMap<PageId, usize>,
    pub pages: Vec<[Option<TokenId>; PAGE_TOKENS as usize]>,
    pub geometry: KvGeometry,
    /// Rows of the last step that may sample: their requests, pages and ends.
    open: Vec<(RequestId, Vec<PageId>, u32)>,
    /// Samples of the preceding step, by request.
    drawn: BTreeMap<RequestId, TokenId>,
}

impl PagedDevice {
    pub fn new(geometry: KvGeometry) -> Self {
        Self {
            echoes: None,
            errs: None,
            vocab: VOCAB,
            checks_history: false,
            checks_groups: false,
            writers: BTreeMap::new(),
            pages: vec![[None; PAGE_TOKENS as usize]; geometry.pages as usize],
            geometry,
            open: Vec::new(),
            drawn: BTreeMap::new(),
        }
    }

    fn page(&self, pages: &[PageId], position: u32, group: usize) -> PageId {
        let block = (position / PAGE_TOKENS) as usize;
        pages[block * self.geometry.groups.count() + group]
    }

    fn slot(&mut self, pages: &[PageId], position: u32, group: usize) -> &mut Option<TokenId> {
        let page = self.page(pages, position, group);
        &mut self.pages[page.0 as usize][(position % PAGE_TOKENS) as usize]
    }

    pub fn begin(&mut self, work: &[SequenceWork<'_>]) {
        for sequence in work {
            assert!(!sequence.tokens.is_empty());
            for (position, token) in (sequence.first_position..).zip(sequence.tokens) {
                let token = match *token {
                    TO_BE_DRAWN => self.drawn[&sequence.request],
                    known => known,
                };
                for group in 0..self.geometry.groups.count() {
                    *self.slot(sequence.pages, position, group) = Some(token);
                    let page = self.page(sequence.pages, position, group);
                    self.writers.insert(page, group);
                }
            }
        }
        // Attention of every row, sampling or not.
        for sequence in work {
            let end = sequence.first_position + sequence.tokens.len() as u32;
            for position in sequence.first_position..end {
                self.seen_from(sequence.pages, position);
            }
        }
        let drawing = work.iter().flat_map(|it| {
            let end = it.first_position + it.tokens.len() as u32;
            let rows = it.samples().count() as u32;
            let ends = end + 1 - rows..=end;
            ends.map(|end| (it.request, it.pages.to_vec(), end))
        });
        self.open = drawing.collect();
    }

    pub fn draw(&mut self, draws: &[Option<SampleWork<'_>>]) -> Vec<Drawn> {
        assert_eq!(draws.len(), self.open.len());
        let open = std::mem::take(&mut self.open);
        let rows = open.into_iter().zip(draws);
        let drawn: Vec<Drawn> = rows
            .filter_map(|((request, pages, end), sample)| {
                let sample = sample.as_ref()?;
                Some(sample.drawn(request, self.draw_one(&pages, end, sample)))
            })
            .collect();
        self.drawn = drawn.iter().map(|row| (row.request, row.token)).collect();
        drawn
    }

    /// The tokens that layers of each group see from a position.
    pub fn seen_from(&mut self, pages: &[PageId], position: u32) -> Vec<TokenId> {
        let KvGroups { full, sliding } = self.geometry.groups;
        let mut seen = Vec::new();
        for group in 0..self.geometry.groups.count() {
            let window = sliding.filter(|_| group >= full as usize);
            let from = window.map_or(0, |sliding| (position + 1).saturating_sub(sliding.window));
            for position in from..=position {
                let page = self.page(pages, position, group);
                let is_own = self.writers.get(&page) == Some(&group);
                assert!(is_own || !self.checks_groups, "a page of another group");
                let token = *self.slot(pages, position, group);
                seen.push(token.expect("the position was computed"));
            }
        }
        seen
    }

    fn draw_one(&mut self, pages: &[PageId], end: u32, sample: &SampleWork<'_>) -> TokenId {
        let mut hash = sample.sampling.seed;
        let seen = self.seen_from(pages, end - 1);
        for token in &seen {
            hash = (hash ^ u64::from(token.0))
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(17);
        }
        let history = sample.prompt.iter().chain(sample.generated);
        assert_eq!(history.clone().count(), end as usize);
        if self.checks_history {
            assert!(history.eq(&seen[..end as usize]), "stale pages");
        }
        let mut bias = sample.bias.iter();
        assert!(bias.all(|(token, _)| token.0 < self.vocab), "unknown token");
        let is_allowed = |token: &u32| match sample.allowed {
            Some(words) => words[*token as usize / 32] & 1 << (token % 32) != 0,
            None => true,
        };
        let echo = self
            .echoes
            .and_then(|period| seen.iter().nth_back(period - 1));
        let first = match echo {
            Some(token) if !hash.is_multiple_of(8) => token.0,
            _ => (hash / 8 % u64::from(VOCAB)) as u32 % self.vocab,
        };
        let is_error = self
            .errs
            .is_some_and(|every| (hash >> 20).is_multiple_of(every));
        let first = (first + u32::from(is_error)) % self.vocab;
        let token = (first..self.vocab).chain(0..first).find(is_allowed);
        TokenId(token.expect("something is allowed"))
    }
}
