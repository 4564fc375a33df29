//! The files of one model: the first has the metadata and says how many there are, each has some of the tensors.

use super::GgufError;
use super::header::{Header, TensorInfo, parse};
use super::value::Value;

/// Of a model in several files: how many they are, which one this is, and tensors of all.
const PARTS_KEY: &str = "split.count";
const PART_KEY: &str = "split.no";
const TENSORS_KEY: &str = "split.tensors.count";

/// Of a model's files, whose order is theirs.
///
/// # Errors
/// As [`parse`], of any of them; and when they do not belong together.
pub(super) fn join<'a>(
    files: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<Header<'a>, GgufError> {
    let of = files.len();
    let mut all: Option<Header<'a>> = None;
    for (number, bytes) in (1..).zip(files) {
        let header = parse(bytes).and_then(|header| header.check_part(number, of).map(|()| header));
        let header = header.map_err(|error| match of {
            1 => error,
            _ => GgufError::Part {
                number,
                source: Box::new(error),
            },
        })?;
        match &mut all {
            None => all = Some(header),
            Some(all) => all.take_in(header)?,
        }
    }
    let all = all.ok_or_else(|| GgufError::MissingKey(PARTS_KEY.to_owned()))?;
    all.check_tensor_count(of)?;
    Ok(all)
}

impl<'a> Header<'a> {
    /// What a file says of itself, where it is one of several: llama.cpp counts them from 0.
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

    /// Takes in the tensors of the next file.
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

    fn check_tensor_count(&self, of: usize) -> Result<(), GgufError> {
        let said = self.get(TENSORS_KEY).and_then(Value::as_u64);
        let found = self.tensors.len();
        match said.filter(|said| of > 1 && *said != found as u64) {
            Some(said) => Err(GgufError::TensorsOfParts { found, said }),
            None => Ok(()),
        }
    }
}
