//! Messages on the socket for descriptors: one byte that says what a descriptor is, and with it the
//! descriptor itself (`SCM_RIGHTS`).
//!
//! The control socket carries words and no rights, this one rights and no words. It is quiet: a
//! child hands over before it says [`Ready`](crate::Event::Ready), and a supervisor hands out
//! before it orders to load, so neither ever waits here for the other.

use thiserror::Error;

/// The meaning of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Article {
    /// The open model file, read-only. Up from the child that opened it, down to the next ones.
    ModelFile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("byte {0} names nothing that is kept")]
pub struct NotAnArticle(pub u8);

impl Article {
    pub const ALL: [Self; 1] = [Self::ModelFile];

    #[must_use]
    pub fn to_byte(self) -> u8 {
        match self {
            Self::ModelFile => 1,
        }
    }

    /// # Errors
    /// When no article has that byte.
    pub fn from_byte(byte: u8) -> Result<Self, NotAnArticle> {
        let mut all = Self::ALL.into_iter();
        all.find(|article| article.to_byte() == byte)
            .ok_or(NotAnArticle(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_one_article_or_none() {
        let named: Vec<_> = (0..=u8::MAX)
            .filter_map(|byte| Article::from_byte(byte).ok())
            .collect();
        assert_eq!(named, Article::ALL);
        assert_eq!(Article::from_byte(0), Err(NotAnArticle(0)));
    }
}
