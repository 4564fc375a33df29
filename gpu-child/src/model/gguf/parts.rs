//! Split models: the first file has the metadata and the number of files, each has some of the tensors.

use super::GgufError;
use super::header::{Header, TensorInfo, parse, wrong_type};
use super::value::Value;

/// Keys of a split model: number of files, number of this file, and tensors of all files.
const PARTS_KEY: &str = "split.count";
const PART_KEY: &str = "split.no";
const TENSORS_KEY: &str = "split.tensors.count";

/// Prefixes of keys that may differ between the files of a model.
const OF_ONE_FILE: [&str; 2] = ["split.", "general."];
const ARCHITECTURE_KEY: &str = "general.architecture";

/// Header of a model's files, in their order.
///
/// # Errors
/// Those of [`parse`], for any of them; also if they do not belong together.
pub(super) fn join<'a>(
    files: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<Header<'a>, GgufError> {
    let of = files.len();
    let mut all: Option<Header<'a>> = None;
    let mut counts = Vec::new();
    for (number, bytes) in (1..).zip(files) {
        let part = parse(bytes).and_then(|header| {
            header.check_part(number, of)?;
            let count = header.tensors_of_all()?;
            Ok((header, count))
        });
        let (header, count) = part.map_err(|error| match of {
            1 => error,
            _ => GgufError::Part {
                number,
                source: Box::new(error),
            },
        })?;
        counts.extend(count.map(|count| (number, count)));
        match &mut all {
            None => all = Some(header),
            Some(all) => {
                all.check_same_model(&header, number)?;
                all.take_in(header)?;
            }
        }
    }
    let all = all.ok_or_else(|| GgufError::MissingKey(PARTS_KEY.to_owned()))?;
    let found = all.tensors.len();
    let wrong = counts.iter().find(|(_, said)| *said != found as u64);
    match wrong.filter(|_| of > 1) {
        Some(&(number, said)) => Err(GgufError::TensorsOfParts {
            number,
            found,
            said,
        }),
        None => Ok(all),
    }
}

impl<'a> Header<'a> {
    /// Checks a file's own number and the number of files, if it has them: llama.cpp counts from 0.
    fn check_part(&self, number: usize, of: usize) -> Result<(), GgufError> {
        let said_of = u64::from(self.u32(PARTS_KEY)?.unwrap_or(0)).max(1);
        let said = u64::from(self.u32(PART_KEY)?.unwrap_or(0)) + 1;
        match (said, said_of) == (number as u64, of as u64) {
            true => Ok(()),
            false => Err(GgufError::OtherPart {
                number,
                of,
                said,
                said_of,
            }),
        }
    }

    /// Adds the tensors of the next file.
    fn take_in(&mut self, next: Self) -> Result<(), GgufError> {
        for tensor in next.tensors {
            let at = self.tensors.len();
            if self.by_name.insert(tensor.name, at).is_some() {
                return Err(GgufError::DuplicateTensor(tensor.name.to_owned()));
            }
            let part = self.data.len();
            self.tensors.push(TensorInfo { part, ..tensor });
        }
        self.data.extend(next.data);
        self.file_bytes += next.file_bytes;
        Ok(())
    }

    /// Number of tensors of all files, if this file has the key.
    fn tensors_of_all(&self) -> Result<Option<u64>, GgufError> {
        let count = |value: &Value<'_>| {
            let count = value.as_u64();
            count.ok_or_else(|| wrong_type(TENSORS_KEY, "a count", value))
        };
        self.get(TENSORS_KEY).map(count).transpose()
    }

    /// Checks that keys repeated from the first file have equal values: tensors of another model may have matching
    /// names and shapes.
    fn check_same_model(&self, next: &Self, number: usize) -> Result<(), GgufError> {
        let is_of_one = |key: &str| OF_ONE_FILE.iter().any(|start| key.starts_with(start));
        let differs = |key: &&str| {
            let both = (self.get(key), next.get(key));
            let is_of_model = *key == ARCHITECTURE_KEY || !is_of_one(key);
            is_of_model && both.0.is_some() && both.0 != both.1
        };
        match next.keys().filter(differs).min() {
            Some(key) => Err(GgufError::OtherModel {
                number,
                key: key.to_owned(),
            }),
            None => Ok(()),
        }
    }
}
