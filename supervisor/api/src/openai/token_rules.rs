//! `min_tokens`, `stop_token_ids` and `allowed_token_ids`, as in vLLM.
//!
//! `gpu-child/src/scheduler/token_rules.rs` defines their effect on tokens, and
//! [`requests::progress`](worker_orcd_requests) that on text.

use crate::fields::Fields;
use crate::json::Kind;
use crate::mistakes::Constraint;
use crate::schema;
use crate::token_ids;
use std::sync::Arc;
use worker_orcd_ipc::{GenerationParams, TokenId};

const MIN: &str = "min_tokens";
const STOP: &str = "stop_token_ids";
const ALLOWED: &str = "allowed_token_ids";

pub(super) const FIELDS: &[&str] = &[MIN, STOP, ALLOWED];

/// Adds the fields to the other parameters. `min_tokens` is at most their `max_tokens`.
pub(super) fn read(
    fields: &mut Fields<'_>,
    vocabulary: u32,
    params: GenerationParams,
) -> GenerationParams {
    let min_tokens = fields.integer(MIN, 0..=u64::from(u32::MAX)).unwrap_or(0);
    if min_tokens > u64::from(params.max_tokens) {
        let rule = format!("must be at most max_tokens, which is {}", params.max_tokens);
        fields.error(MIN, Constraint::Conflict, rule);
    }
    GenerationParams {
        min_tokens: min_tokens as u32,
        stop_token_ids: read_ids(fields, STOP, 0, vocabulary),
        allowed_token_ids: read_ids(fields, ALLOWED, 1, vocabulary),
        ..params
    }
}

/// Reads a list of token ids, in any order. Returns them in ascending order, each once.
fn read_ids(fields: &mut Fields<'_>, name: &str, least: usize, vocabulary: u32) -> Arc<[TokenId]> {
    let length = least..=vocabulary as usize;
    let shape = || schema::list(token_ids::shape(vocabulary), &length);
    let Some(given) = fields.given(name, shape) else {
        return Arc::default();
    };
    let (mut ids, mut count) = (Vec::new(), 0);
    given.each_element(|id| {
        count += 1;
        if length.contains(&count) {
            ids.extend(token_ids::read(id, vocabulary));
        }
    });
    if given.kind() != Kind::List {
        fields.error(name, Constraint::Type, "must be a list of token ids");
    } else if !length.contains(&count) {
        let rule = format!("must have from {least} to {vocabulary} ids");
        fields.error(name, Constraint::Length, rule);
    } else if ids.len() < count {
        fields.error(name, Constraint::Range, "must hold ids of the vocabulary");
    }
    ids.sort_unstable();
    ids.dedup();
    ids.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_body(body: &str) -> Result<GenerationParams, Vec<String>> {
        let mut fields = Fields::parse(body, &[FIELDS]).unwrap();
        let others = GenerationParams {
            max_tokens: 9,
            ..GenerationParams::default()
        };
        let params = read(&mut fields, 50, others);
        let named = |it: crate::mistakes::Mistakes| {
            let listed = it.listed().iter();
            listed.map(|it| it.field.clone()).collect()
        };
        fields.finish().map(|()| params).map_err(named)
    }

    #[test]
    fn ids_are_ascending_and_each_is_there_once() {
        let body =
            r#"{"min_tokens": 9, "stop_token_ids": [7, 49, 0, 7], "allowed_token_ids": [3]}"#;
        let params = read_body(body).unwrap();
        assert_eq!(params.min_tokens, 9);
        assert_eq!(*params.stop_token_ids, [0, 7, 49].map(TokenId));
        assert_eq!(*params.allowed_token_ids, [TokenId(3)]);
        let nothing = r#"{"min_tokens": 0, "stop_token_ids": [], "allowed_token_ids": null}"#;
        assert_eq!(read_body(nothing), read_body("{}"));
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        let many = format!("{:?}", vec![1; 51]);
        for (name, wrong) in [
            (MIN, "10"),
            (MIN, "-1"),
            (MIN, "1.5"),
            (STOP, "[50]"),
            (STOP, "[-1]"),
            (STOP, "[\"7\"]"),
            (STOP, "7"),
            (STOP, &many),
            (ALLOWED, "[]"),
            (ALLOWED, "[1, 50]"),
            (ALLOWED, "{\"1\": 1}"),
            (ALLOWED, &many),
        ] {
            let mistakes = read_body(&format!("{{\"{name}\": {wrong}}}")).unwrap_err();
            assert_eq!(mistakes, [name], "{wrong}");
        }
    }
}
