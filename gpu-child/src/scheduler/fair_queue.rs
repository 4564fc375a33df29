//! Order of prefill: selects the prompt for the next chunk. Pure.
//!
//! **Between clients**: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with the prompt token as the
//! unit. Each client has an account of its computed tokens, and the client with the smallest is next. A new or
//! returning client begins at the level of the client that had the last turn: absence saves up no turns, and frequent
//! returns gain none. So two clients with waiting prompts are never more than two chunks apart.
//!
//! **Between the requests of a client**: half of the tokens go to the oldest, half to the one with the fewest left. The
//! first half prevents starvation, because every request becomes the oldest. The second lets a short prompt after long
//! ones wait for about twice its own time.

use std::collections::BTreeMap;
use worker_orcd_ipc::ClientId;

/// A request with prompt tokens left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub client: ClientId,
    /// Index in the order of arrival.
    pub serial: u64,
    /// Tokens to compute before the first sample.
    pub left: usize,
    /// True if the request needs admission first.
    pub waits: bool,
    /// Log probabilities of its prompt are still missing.
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
    /// Tokens by which the shortest requests are ahead of the oldest ones. At most a chunk either way, because the one
    /// ahead waits.
    lead: i64,
}

impl FairQueue {
    /// Removes clients without remaining prompts that had no more than others.
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

    /// The request for the next chunk.
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

    /// Charges the client's turn: this many tokens.
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

    /// Passes the turn of a request that cannot run now to the client's other class: oldest or shortest.
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
