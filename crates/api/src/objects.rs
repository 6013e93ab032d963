//! Where chunks' bytes are in the object store, and what is said of an object that was put.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::branches::entries::Digest;
use windlass_core::branches::outputs::output_address;
use windlass_core::ids::{Attempt, ChunkIndex, SubmissionId};

/// The header that announces the digest of a body in hexadecimal digits.
pub const SHA256_HEADER: &str = "x-windlass-sha256";

/// An object as it was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectInfo {
    /// Its size in bytes.
    pub size: u64,
    /// The SHA-256 of its bytes, in hexadecimal digits.
    #[schema(value_type = String)]
    pub sha256: Digest,
}

/// The key of a chunk's input under its submission's prefix.
pub fn input_key(prefix: &str, chunk: ChunkIndex) -> String {
    format!("{prefix}/{chunk}")
}

/// The key of an attempt's output: its own, so that late work never overwrites what was accepted.
pub fn output_key(submission: SubmissionId, chunk: ChunkIndex, attempt: Attempt) -> String {
    output_address(submission, chunk, attempt, None)
}

/// A digest as `Repr-Digest` and `Content-Digest` have it (RFC 9530).
pub fn digest_field(sha256: &Digest) -> String {
    format!("sha-256=:{}:", STANDARD.encode(sha256.as_bytes()))
}

/// The SHA-256 in a `Repr-Digest` or `Content-Digest`; none if it has only others, which RFC 9530 wants ignored.
///
/// # Errors
/// If there is a SHA-256 that is none, as a sentence that says what to send.
pub fn digest_in_field(field: &str) -> Result<Option<Digest>, String> {
    let wrong = || format!("{field:?} has no SHA-256 as RFC 9530 writes it: sha-256=:<32 bytes in base64>:");
    // Base64 has no comma, so members of the field are what stands between commas.
    let mut members = field.split(',').filter_map(|member| member.trim().split_once('='));
    let Some((_, value)) = members.find(|(name, _)| *name == "sha-256") else { return Ok(None) };
    let text = value.strip_prefix(':').and_then(|value| value.strip_suffix(':')).ok_or_else(wrong)?;
    let bytes = STANDARD.decode(text).map_err(|_| wrong())?;
    <[u8; 32]>::try_from(bytes).map(|bytes| Some(Digest::new(bytes))).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_field_is_read_as_it_is_written_and_others_are_passed_over() {
        let sha256 = Digest::new([0xa5; 32]);
        let field = digest_field(&sha256);
        assert_eq!(field, "sha-256=:paWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaU=:");
        assert_eq!(digest_in_field(&field), Ok(Some(sha256)));
        assert_eq!(digest_in_field(&format!("sha-512=:AAAA:, {field}")), Ok(Some(sha256)));
        assert_eq!(digest_in_field("sha-512=:AAAA:"), Ok(None));
        for wrong in ["sha-256=paWl", "sha-256=:paWl:", "sha-256=:***:", "sha-256="] {
            assert!(digest_in_field(wrong).unwrap_err().contains("RFC 9530"), "{wrong}");
        }
    }
}
