//! References within one schema: each becomes a reference to a definition with a plain name.

use super::wrong;
use crate::error::GrammarError;
use serde_json::Value;
use std::collections::HashMap;

pub(super) struct References<'a> {
    root: &'a Value,
    /// Places by name: `$id`, or the place of one and an anchor after `#`.
    named: HashMap<String, String>,
    /// Places of documents.
    documents: Vec<String>,
    definitions: HashMap<String, String>,
    pending: Vec<(String, String)>,
}

impl<'a> References<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let (mut named, mut documents) = (HashMap::new(), Vec::new());
        note_names(root, "", "", &mut named, &mut documents);
        Self {
            root,
            named,
            documents,
            definitions: HashMap::new(),
            pending: Vec::new(),
        }
    }

    /// The translated reference for one at the place `at`.
    pub(super) fn followed(&mut self, value: &Value, at: &str) -> Result<String, GrammarError> {
        let reference = value
            .as_str()
            .ok_or_else(|| wrong(at, "it must be a string"))?;
        let place = self.place(reference, at);
        let place = place.filter(|place| self.root.pointer(place).is_some());
        let Some(place) = place else {
            let why = format!("$ref {reference:?} leads to nothing in this schema");
            return Err(wrong(at, &why));
        };
        if let Some(name) = self.definitions.get(&place) {
            return Ok(format!("#/$defs/{name}"));
        }
        // The compiler supports no escapes in a reference.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-$".contains(c);
        let plain: String = place
            .chars()
            .map(|c| if is_plain(c) { c } else { '.' })
            .collect();
        let name = format!("{}{plain}", self.definitions.len());
        self.definitions.insert(place.clone(), name.clone());
        self.pending.push((name.clone(), place));
        Ok(format!("#/$defs/{name}"))
    }

    /// The next definition to write, with its place.
    pub(super) fn next(&mut self) -> Option<(String, String)> {
        self.pending.pop()
    }

    /// Target of a reference, if it is the same at every place.
    pub(super) fn target(&self, reference: &str) -> Option<&'a Value> {
        let place = self
            .place(reference, "")
            .filter(|_| self.is_one_document())?;
        self.root.pointer(&place)
    }

    /// True if no schema inside has a name of its own as a base of references.
    pub(super) fn is_one_document(&self) -> bool {
        self.documents.iter().all(String::is_empty)
    }

    fn place(&self, reference: &str, at: &str) -> Option<String> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = match document {
            "" => base_of(self.root, at),
            _ => self.named.get(document)?.clone(),
        };
        let fragment = percent_decoded(fragment)?;
        match fragment.is_empty() || fragment.starts_with('/') {
            true => Some(base + &fragment),
            false => self.named.get(&format!("{base}#{fragment}")).cloned(),
        }
    }
}

/// A segment of a place.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The name of a schema's document. An anchor alone is not a name.
fn id(schema: &Value) -> Option<&str> {
    let id = schema.get("$id").or_else(|| schema.get("id"))?.as_str()?;
    let id = id.trim_end_matches('#');
    (!id.is_empty() && !id.starts_with('#')).then_some(id)
}

/// The place of the innermost document around a place.
fn base_of(root: &Value, at: &str) -> String {
    let mut base = 0;
    for (end, _) in at.match_indices('/').skip(1).chain([(at.len(), "")]) {
        if root.pointer(&at[..end]).and_then(id).is_some() {
            base = end;
        }
    }
    at[..base].to_owned()
}

fn note_names(
    value: &Value,
    at: &str,
    base: &str,
    named: &mut HashMap<String, String>,
    documents: &mut Vec<String>,
) {
    let base = match id(value) {
        Some(id) => {
            named.insert(id.to_owned(), at.to_owned());
            documents.push(at.to_owned());
            at
        }
        None => base,
    };
    let anchors = ["$anchor", "$dynamicAnchor", "$id", "id"];
    for name in anchors.iter().filter_map(|name| value.get(name)?.as_str()) {
        let anchor = name.strip_prefix('#').unwrap_or(name);
        named.insert(format!("{base}#{anchor}"), at.to_owned());
    }
    let mut note = |name: &str, member| {
        note_names(member, &format!("{at}/{name}"), base, named, documents);
    };
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                note(&escaped(name), member);
            }
        }
        Value::Array(members) => {
            for (index, member) in members.iter().enumerate() {
                note(&index.to_string(), member);
            }
        }
        _ => {}
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}
