//! Message field with deferred decoding. Decoding a vocabulary takes tens of milliseconds, in which the thread that reads
//! messages could not serve streams.

use crate::codec::{CodecError, decode, encode};
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// Encoded `T`. The bytes are not validated before [`Encoded::decode`].
#[derive(Clone, PartialEq, Eq)]
pub struct Encoded<T> {
    bytes: Vec<u8>,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Encoded<T> {
    /// Encodes a value.
    ///
    /// # Errors
    /// Those of [`encode`].
    pub fn of(value: &T) -> Result<Self, CodecError> {
        encode(value).map(Self::from)
    }

    /// Decodes the value.
    ///
    /// # Errors
    /// If the bytes are not a `T`.
    pub fn decode(&self) -> Result<T, CodecError> {
        decode(&self.bytes)
    }
}

impl<T> From<Vec<u8>> for Encoded<T> {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            of: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Encoded<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} encoded bytes", self.bytes.len())
    }
}

impl<T> Serialize for Encoded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

impl<'de, T> Deserialize<'de> for Encoded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(Bytes).map(Self::from)
    }
}

/// Visitor for a byte buffer. Serde would deserialize `Vec<u8>` byte by byte.
struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_field_leaves_the_message_readable() {
        let good = Encoded::of(&vec!["a".to_owned()]).unwrap();
        let bad: Encoded<Vec<String>> = vec![200].into();
        let message = encode(&(good, bad, 7_u8)).unwrap();
        let (good, bad, last): (Encoded<Vec<String>>, Encoded<Vec<String>>, u8) =
            decode(&message).unwrap();
        assert_eq!(good.decode().unwrap(), ["a"]);
        assert!(bad.decode().is_err());
        assert_eq!(last, 7);
    }
}
