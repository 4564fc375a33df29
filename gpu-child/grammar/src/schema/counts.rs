//! Number of an object's properties. The compiler counts those without a keyword; for named ones, the translation
//! states which are present.

use super::negation::{any_of, typed};
use super::types::Types;
use super::{Keywords, Out, numbers};
use serde_json::{Map, Value, json};

/// Maximum number of sets of names.
const MAX_SETS: usize = 64;

/// Translates the limits.
///
/// # Errors
/// The keyword, and the reason for its refusal.
pub(super) fn write(keywords: &Keywords, out: &mut Out) -> Result<(), String> {
    let number = |name: &str| keywords.get(name).and_then(numbers::count);
    let (least, most) = (
        number("minProperties").unwrap_or(0),
        number("maxProperties"),
    );
    let required = keywords.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    let mut required: Vec<&str> = required.collect();
    required.sort_unstable();
    required.dedup();
    let fixed = required.len() as u64;
    let properties = keywords.get("properties").and_then(Value::as_object);
    let optional = properties.into_iter().flatten().filter(|(name, schema)| {
        !required.contains(&name.as_str()) && *schema != &Value::Bool(false)
    });
    let optional: Vec<&str> = optional.map(|(name, _)| name.as_str()).collect();
    let has_others = keywords.get("additionalProperties") != Some(&Value::Bool(false))
        || keywords.contains_key("patternProperties");
    if least <= fixed {
        out.plain.remove("minProperties");
    }
    if !has_others && most.is_some_and(|most| fixed + optional.len() as u64 <= most) {
        out.plain.remove("maxProperties");
    }
    let is_left = |name: &str| out.plain.contains_key(name);
    let (has_least, has_most) = (is_left("minProperties"), is_left("maxProperties"));
    if !has_least && !has_most {
        return Ok(());
    }
    let more = least.saturating_sub(fixed) as usize;
    if optional.is_empty() {
        // Names that are free may come twice, and count once only.
        return match has_others && more > 1 {
            true => Err("minProperties cannot be followed where names are free".to_owned()),
            false => Ok(()),
        };
    }
    let room = most.filter(|_| has_most);
    let room = room.map(|most| most.saturating_sub(fixed) as usize);
    if !has_others && more <= 1 && room.unwrap_or(1) == 1 {
        return Ok(());
    }
    let sets = Sets {
        optional,
        more,
        has_others,
    };
    let parts = match room {
        Some(room) => sets.of_at_most(room),
        None => {
            out.plain.remove("minProperties");
            sets.of_at_least(least)
        }
    };
    let mut parts = parts.ok_or(
        "minProperties and maxProperties cannot be followed beside so many optional properties",
    )?;
    let others = Types::keyword(keywords.get("type")).without(Types::OBJECT);
    if !others.is_none() {
        parts.push(typed(others, json!({})));
    }
    out.more.push(any_of(parts));
    Ok(())
}

struct Sets<'a> {
    optional: Vec<&'a str>,
    /// Number of required properties besides those in `required`.
    more: usize,
    has_others: bool,
}

impl Sets<'_> {
    fn of_at_most(&self, room: usize) -> Option<Vec<Value>> {
        let mut parts = Vec::new();
        for size in 0..=room.min(self.optional.len()) {
            let missing = self.more.saturating_sub(size);
            if missing == 0 || self.has_others && missing == 1 {
                for set in self.of_size(size)? {
                    parts.push(self.part(&set, true, None));
                }
            }
            if parts.len() > MAX_SETS {
                return None;
            }
        }
        Some(parts)
    }

    fn of_at_least(&self, least: u64) -> Option<Vec<Value>> {
        let mut parts: Vec<Value> = Vec::new();
        if self.more <= self.optional.len() {
            let sets = self.of_size(self.more)?;
            parts.extend(sets.iter().map(|set| self.part(set, false, None)));
        }
        if self.has_others && self.more <= self.optional.len() + 1 {
            let sets = self.of_size(self.more - 1)?;
            parts.extend(sets.iter().map(|set| self.part(set, true, Some(least))));
        }
        (parts.len() <= MAX_SETS).then_some(parts)
    }

    /// Schema with these properties present, and, if `is_all`, no other.
    fn part(&self, set: &[&str], is_all: bool, least: Option<u64>) -> Value {
        let mut part = json!({"type": "object", "required": set});
        if is_all {
            let others = self.optional.iter().filter(|it| !set.contains(it));
            let others: Map<_, _> = others.map(|it| ((*it).to_owned(), json!(false))).collect();
            part["properties"] = Value::Object(others);
        }
        if let Some(least) = least {
            part["minProperties"] = json!(least);
        }
        part
    }

    /// All sets of this size; `None`: there are too many.
    fn of_size(&self, size: usize) -> Option<Vec<Vec<&str>>> {
        let mut sets: Vec<(usize, Vec<&str>)> = vec![(0, Vec::new())];
        for _ in 0..size {
            let mut larger = Vec::new();
            for (from, set) in &sets {
                for (at, name) in self.optional.iter().enumerate().skip(*from) {
                    let mut set = set.clone();
                    set.push(name);
                    larger.push((at + 1, set));
                    if larger.len() > MAX_SETS * 4 {
                        return None;
                    }
                }
            }
            sets = larger;
        }
        Some(sets.into_iter().map(|(_, set)| set).collect())
    }
}
