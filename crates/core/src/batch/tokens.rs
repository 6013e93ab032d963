//! Tokens: proof that an attempt was handed out.
//!
//! A token binds an attempt to its chunk with a keyed hash, so that a leader can tell a late report of an earlier
//! leadership's hand-out, which counts, from a report of a chunk that was never handed out, which does not, without
//! remembering any hand-out.

use crate::ids::{Attempt, ChunkName, Epoch};
use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

/// What comes with each reservation and goes back with `complete`, `fail`, `extend` and `release`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptToken {
    /// The attempt.
    pub attempt: Attempt,
    /// What only the cluster can compute.
    pub proof: u64,
}

impl AttemptToken {
    /// The token of an attempt at a chunk.
    pub fn new(key: &[u8; 16], chunk: ChunkName, attempt: Attempt) -> AttemptToken {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(&chunk.key());
        hasher.write(&attempt.epoch.0.to_be_bytes());
        hasher.write(&attempt.nth.to_be_bytes());
        AttemptToken { attempt, proof: hasher.finish() }
    }

    /// Whether the token belongs to this chunk.
    pub fn is_of(&self, key: &[u8; 16], chunk: ChunkName) -> bool {
        AttemptToken::new(key, chunk, self.attempt) == *self
    }
}

impl fmt::Display for AttemptToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.attempt, self.proof)
    }
}

/// Why a text is no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAToken;

impl fmt::Display for NotAToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an attempt token is the text that came with the reservation; send it back as it was")
    }
}

impl std::error::Error for NotAToken {}

impl FromStr for AttemptToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<AttemptToken, NotAToken> {
        let parts: Vec<&str> = text.split('-').collect();
        let [epoch, nth, proof] = parts[..] else { return Err(NotAToken) };
        let token = AttemptToken {
            attempt: Attempt {
                epoch: Epoch(epoch.parse().map_err(|_| NotAToken)?),
                nth: nth.parse().map_err(|_| NotAToken)?,
            },
            proof: u64::from_str_radix(proof, 16).map_err(|_| NotAToken)?,
        };
        // One token has one spelling: no signs, no leading zeros.
        if token.to_string() == text { Ok(token) } else { Err(NotAToken) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ChunkIndex, SubmissionId};

    #[test]
    fn a_token_is_of_its_own_chunk_attempt_and_cluster_only() {
        let chunk = ChunkName { submission: SubmissionId::from_u64(7).unwrap(), chunk: ChunkIndex(3) };
        let token = AttemptToken::new(&[1; 16], chunk, Attempt { epoch: Epoch(2), nth: 0 });
        assert_eq!(token.to_string().parse(), Ok(token));
        assert!(token.is_of(&[1; 16], chunk));
        assert!(!token.is_of(&[2; 16], chunk));
        assert!(!token.is_of(&[1; 16], ChunkName { chunk: ChunkIndex(4), ..chunk }));
        let other_attempt = AttemptToken { attempt: Attempt { epoch: Epoch(2), nth: 1 }, ..token };
        assert!(!other_attempt.is_of(&[1; 16], chunk));
    }

    #[test]
    fn garbage_is_no_token() {
        for text in
            ["", "1-2", "1-2-3-4", "a-b-c", "1-0-+f", "01-0-0000000000000000", "1-0-00000000000000000"]
        {
            assert_eq!(text.parse::<AttemptToken>(), Err(NotAToken), "{text:?}");
        }
    }
}
