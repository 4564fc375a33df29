//! Snippets of docs/guide/clients.md, which the tests run unchanged.

use crate::model::repository_root;
use std::fs;

const PAGE: &str = "docs/guide/clients.md";

/// Fenced block, named by the comment in its first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snippet {
    pub name: String,
    pub code: String,
}

/// All snippets of the page in a language, as its fences name it.
///
/// # Panics
/// The page does not exist, or a block has no name.
#[must_use]
pub fn of_page(language: &str) -> Vec<Snippet> {
    let path = repository_root().join(PAGE);
    let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
    snippets(&page, language)
}

fn snippets(page: &str, language: &str) -> Vec<Snippet> {
    let fence = format!("```{language}");
    let mut lines = page.lines();
    let mut found = Vec::new();
    while lines.by_ref().any(|line| line == fence) {
        let block = lines.by_ref().take_while(|line| *line != "```");
        let code: String = block.flat_map(|line| [line, "\n"]).collect();
        let first = code.lines().next().unwrap_or_default();
        let name = first.strip_prefix("# ").or(first.strip_prefix("// "));
        let name = name.unwrap_or_else(|| panic!("a block of {language} has no name: {first}"));
        found.push(Snippet {
            name: name.to_owned(),
            code,
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_apart_by_their_language() {
        let page = "# Page\n```python\n# one\nprint(1)\n\n```\n```rust\n// two\nf();\n```\ntext\n```python\n# three\n```\n";
        let snippet = |name: &str, code: &str| Snippet {
            name: name.to_owned(),
            code: code.to_owned(),
        };
        let python = [
            snippet("one", "# one\nprint(1)\n\n"),
            snippet("three", "# three\n"),
        ];
        assert_eq!(snippets(page, "python"), python);
        assert_eq!(snippets(page, "rust"), [snippet("two", "// two\nf();\n")]);
        assert_eq!(snippets(page, "sh"), []);
    }

    #[test]
    #[should_panic(expected = "has no name: print(1)")]
    fn a_block_without_a_name_is_a_mistake() {
        let _ = snippets("```python\nprint(1)\n```\n", "python");
    }
}
