//! A complete body, read as JSON.

use crate::error::ApiError;
use crate::fields::{Fields, Names};
use crate::mistakes::Constraint;

/// Parses a complete body and applies `read`.
///
/// # Errors
/// 400, or the error of `read`.
pub fn parse<T>(
    bytes: &[u8],
    names: Names,
    read: impl for<'a> FnOnce(Fields<'a>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let wrong = |message: String| ApiError::invalid_field("body", Constraint::Json, message);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to() + 1;
        wrong(format!("is not JSON: byte {place} is not UTF-8"))
    })?;
    match Fields::parse(text, names) {
        Ok(fields) => read(fields),
        Err(error) if error.is_data() => Err(wrong("must be a JSON object".to_owned())),
        // The parser's message may quote the text; its position does not.
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            Err(wrong(format!("is not JSON: line {line}, column {column}")))
        }
    }
}
