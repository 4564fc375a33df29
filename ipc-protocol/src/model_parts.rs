//! Models in several files with the names of llama.cpp's `llama-gguf-split`: `NAME-00001-of-00003.gguf` and so on, in one
//! directory. The path of the first file identifies the model.

use std::path::{Path, PathBuf};

/// Maximum number of files of a model. All their descriptors are in transit at once.
pub const MAX_MODEL_PARTS: u16 = 128;

/// Number of digits of each number in a file name.
const DIGITS: usize = 5;

/// Parsed name of one file of a split model, without `.gguf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelPart<'a> {
    /// Common prefix of all files.
    pub name: &'a str,
    /// Number of the file, from 1.
    pub number: u32,
    /// Number of files.
    pub of: u32,
}

impl<'a> ModelPart<'a> {
    /// Parses a file stem. `None`: the file is not a part of a split model.
    #[must_use]
    pub fn of_stem(stem: &'a str) -> Option<Self> {
        let (rest, of) = stem.rsplit_once("-of-")?;
        let (name, number) = rest.rsplit_once('-')?;
        let part = Self {
            name,
            number: number_in(number)?,
            of: number_in(of)?,
        };
        (part.number >= 1 && part.number <= part.of).then_some(part)
    }
}

/// Name of a model, from the path of its only or first file.
#[must_use]
pub fn model_stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let part = ModelPart::of_stem(&stem);
    part.map_or_else(|| stem.to_string(), |part| part.name.to_owned())
}

fn number_in(text: &str) -> Option<u32> {
    let is_number = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Paths of all files of a model, in order, from the path of its first file. Any other path is returned alone.
#[must_use]
pub fn model_parts(first: &Path) -> Vec<PathBuf> {
    let stem = first.file_stem().and_then(|stem| stem.to_str());
    let extension = first.extension().and_then(|extension| extension.to_str());
    match (stem.and_then(ModelPart::of_stem), extension) {
        (Some(ModelPart { name, number, of }), Some(extension))
            if number == 1 && of <= u32::from(MAX_MODEL_PARTS) =>
        {
            let file = |number| format!("{name}-{number:0DIGITS$}-of-{of:0DIGITS$}.{extension}");
            (1..=of)
                .map(|number| first.with_file_name(file(number)))
                .collect()
        }
        _ => vec![first.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_distinguished_from_other_names_with_numbers() {
        let part = |name, number, of| Some(ModelPart { name, number, of });
        for (stem, expected) in [
            ("M-Q8_0-00001-of-00002", part("M-Q8_0", 1, 2)),
            ("M-00012-of-00012", part("M", 12, 12)),
            ("M-00003-of-00002", None),
            ("M-00000-of-00002", None),
            ("M-1-of-2", None),
            ("M-000001-of-00002", None),
            ("best-of-00002", None),
            ("M", None),
        ] {
            assert_eq!(ModelPart::of_stem(stem), expected, "{stem}");
        }
    }

    #[test]
    fn the_first_part_yields_all_parts_and_any_other_path_only_itself() {
        let parts = model_parts(Path::new("/m/M-00001-of-00003.gguf"));
        let names = ["1", "2", "3"].map(|it| PathBuf::from(format!("/m/M-0000{it}-of-00003.gguf")));
        assert_eq!(parts, names);
        assert_eq!(model_stem(Path::new("/m/M-00001-of-00003.gguf")), "M");
        assert_eq!(model_stem(Path::new("/m/M.Q8_0.gguf")), "M.Q8_0");
        for alone in [
            "/m/M.gguf",
            "M-00002-of-00003.gguf",
            "M-00001-of-99999.gguf",
        ] {
            assert_eq!(model_parts(Path::new(alone)), [PathBuf::from(alone)]);
        }
    }
}
