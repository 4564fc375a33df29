//! Token ids in requests, and inputs that are texts or token ids.

use crate::json::Json;
use crate::schema::{self, Shape};
use worker_orcd_ipc::TokenId;

/// Shape of a token id.
pub(crate) fn shape(vocabulary: u32) -> Shape {
    schema::integer(&(0..=u64::from(vocabulary.saturating_sub(1))))
}

/// Shape of a text or token ids, or of a list of at most `most` of these.
pub(crate) fn inputs_shape(max_chars: usize, vocabulary: u32, most: usize) -> Shape {
    let text = schema::text_of(&(1..=max_chars));
    let ids = schema::list(shape(vocabulary), &(1..=usize::MAX));
    let one = schema::any_of([text.clone(), ids.clone()]);
    schema::any_of([text, ids, schema::list(one, &(1..=most))])
}

/// Token id within the vocabulary.
pub(crate) fn read(id: Json<'_>, vocabulary: u32) -> Option<TokenId> {
    let id = id.whole()?;
    (id < u64::from(vocabulary)).then_some(TokenId(id as u32))
}

/// List of token ids within the vocabulary. `None` for other values.
pub(crate) fn read_list(list: Json<'_>, vocabulary: u32) -> Option<Vec<TokenId>> {
    let (mut ids, mut all_known) = (Vec::new(), true);
    let is_list = list.each_element(|id| match read(id, vocabulary) {
        Some(id) if all_known => ids.push(id),
        _ => all_known = false,
    });
    (is_list && all_known).then_some(ids)
}
