//! The order of prompts: whose prompt is computed next. Pure.
//!
//! **Between clients** it is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with the
//! prompt token as its unit. Each client has an account of what was computed for it, and the
//! smallest is next. One that comes, or comes back, begins at the level where the client stood that
//! had the turn last: nobody saves up turns by staying away, and nobody is given more by coming
//! back often. So two clients with prompts waiting are never further apart than two chunks.
//!
//! **Between the requests of a client** half of the tokens are the oldest one's and half are those of
//! the one with the fewest left. The first half says that nobody starves: everybody gets to be
//! the oldest. The second says that a short prompt behind long ones waits about twice its own time.

use std::collections::BTreeMap;
use worker_orcd_ipc::ClientId;

/// A request with prompt tokens left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub client: ClientId,
    /// Place in the order of arrival.
    pub serial: u64,
    /// Tokens to be computed before the first is drawn.
    pub left: usize,
    /// A request that runs only once it is admitted.
    pub waits: bool,
    /// Log probabilities of its prompt are still to be told.
    pub scores: bool,
}

#[derive(Debug, Default)]
pub(super) struct FairQueue {
    accounts: BTreeMap<ClientId, Account>,
    /// Level of the client that had the last turn.
    level: u64,
}

#[derive(Debug, Default)]
struct Account {
    tokens: u64,
    /// Tokens by which the shortest requests are ahead of the oldest ones: never more than a chunk
    /// either way, because the one that is ahead waits.
    lead: i64,
}

impl FairQueue {
    /// Forgets clients that have nothing left and had no more than others.
    pub(super) fn retain_clients(&mut self, present: &[Candidate]) {
        if present.is_empty() {
            self.accounts.clear();
        } else if self.accounts.len() > present.len() {
            let level = self.level;
            self.accounts.retain(|client, account| {
                account.tokens > level || present.iter().any(|it| it.client == *client)
            });
        }
    }

    /// The request whose turn it is.
    pub(super) fn next(&self, candidates: &[Candidate]) -> Option<Candidate> {
        // Of two at one level, the one that waits for longer.
        let first = |it: &&Candidate| (self.standing(it.client), it.serial);
        let client = candidates.iter().min_by_key(first)?.client;
        let of_client = candidates.iter().filter(|it| it.client == client);
        let next = match self.accounts.get(&client) {
            Some(account) if account.lead > 0 => of_client.min_by_key(|it| it.serial),
            _ => of_client.min_by_key(|it| (it.left, it.serial)),
        };
        next.copied()
    }

    /// The client had its turn, with this many tokens.
    pub(super) fn charge(&mut self, client: ClientId, tokens: usize) {
        let begins = self.standing(client);
        self.level = begins;
        let account = self.accounts.entry(client).or_default();
        account.tokens = begins + tokens as u64;
        let for_oldest = account.lead > 0;
        account.lead += if for_oldest {
            -(tokens as i64)
        } else {
            tokens as i64
        };
    }

    /// The request whose turn it was cannot be run now: the client's other kind is next.
    pub(super) fn pass(&mut self, client: ClientId) {
        let begins = self.standing(client);
        let account = self.accounts.entry(client).or_default();
        account.tokens = begins;
        account.lead = i64::from(account.lead <= 0);
    }

    fn standing(&self, client: ClientId) -> u64 {
        let account = self.accounts.get(&client);
        account.map_or(self.level, |it| it.tokens.max(self.level))
    }
}
