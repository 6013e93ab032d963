//! Chunking: many operations become few objects, one line for each operation.

use crate::error::ClientError;
use bytes::Bytes;
use std::io;
use std::num::NonZeroUsize;

/// Groups operations into chunks, lazily: one chunk is in memory at a time.
///
/// A chunk's bytes are its operations, each followed by a newline, so that chunks can be joined end to end.
#[derive(Debug)]
pub struct Chunks<I> {
    operations: I,
    chunk_size: NonZeroUsize,
    taken: u64,
    over: bool,
}

impl<I> Chunks<I> {
    /// Chunks of `chunk_size` operations; the last one may have fewer.
    pub const fn new(operations: I, chunk_size: NonZeroUsize) -> Chunks<I> {
        Chunks { operations, chunk_size, taken: 0, over: false }
    }
}

impl<I, O> Iterator for Chunks<I>
where
    I: Iterator<Item = io::Result<O>>,
    O: AsRef<[u8]>,
{
    type Item = Result<Bytes, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let mut chunk = Vec::new();
        for operation in self.operations.by_ref().take(self.chunk_size.get()) {
            let refusal = match operation {
                Ok(operation) if operation.as_ref().contains(&b'\n') => ClientError::Setting(format!(
                    "operation {} contains a newline, which separates operations; escape it, for example as JSON",
                    self.taken
                )),
                Ok(operation) => {
                    self.taken += 1;
                    chunk.extend_from_slice(operation.as_ref());
                    chunk.push(b'\n');
                    continue;
                }
                Err(error) => ClientError::Operations(error),
            };
            self.over = true;
            return Some(Err(refusal));
        }
        self.over = chunk.is_empty();
        (!self.over).then(|| Ok(chunk.into()))
    }
}

/// The operations in a chunk's bytes.
pub fn operations_of(chunk: &[u8]) -> impl Iterator<Item = &[u8]> {
    let body = chunk.strip_suffix(b"\n").unwrap_or(chunk);
    let mut lines = body.split(|&byte| byte == b'\n');
    if chunk.is_empty() {
        lines.next();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(operations: &[&str], chunk_size: usize) -> Vec<Result<Bytes, ClientError>> {
        let operations: Vec<io::Result<String>> = operations.iter().map(|it| Ok((*it).to_owned())).collect();
        Chunks::new(operations.into_iter(), NonZeroUsize::new(chunk_size).unwrap()).collect()
    }

    #[test]
    fn operations_are_grouped_in_order_and_the_last_chunk_may_be_shorter() {
        let bytes: Vec<Bytes> =
            chunks(&["a", "", "c", "d", "e"], 2).into_iter().map(Result::unwrap).collect();
        assert_eq!(bytes, ["a\n\n", "c\nd\n", "e\n"]);
        let back: Vec<&[u8]> = bytes.iter().flat_map(|chunk| operations_of(chunk)).collect();
        assert_eq!(back, [&b"a"[..], b"", b"c", b"d", b"e"]);
    }

    #[test]
    fn a_size_that_divides_the_operations_makes_no_empty_chunk_and_no_operations_make_no_chunk() {
        assert_eq!(chunks(&["a", "b"], 2).len(), 1);
        assert_eq!(chunks(&[], 2).len(), 0);
        assert_eq!(operations_of(b"").count(), 0);
        assert_eq!(operations_of(b"\n").collect::<Vec<_>>(), [b""]);
    }

    #[test]
    fn an_operation_with_a_newline_is_refused_by_its_number_and_ends_the_chunks() {
        let chunks = chunks(&["a", "b", "c\nd", "e"], 2);
        assert_eq!(chunks.len(), 2);
        let sentence = chunks[1].as_ref().unwrap_err().to_string();
        assert!(sentence.starts_with("operation 2 contains a newline"), "{sentence}");
    }

    #[test]
    fn reading_is_lazy_and_an_unreadable_operation_ends_the_chunks() {
        let endless =
            (0..).map(|n: u64| if n < 5 { Ok(n.to_string()) } else { Err(io::Error::other("torn")) });
        let mut chunks = Chunks::new(endless, NonZeroUsize::new(2).unwrap());
        assert_eq!(chunks.next().unwrap().unwrap(), "0\n1\n");
        assert_eq!(chunks.next().unwrap().unwrap(), "2\n3\n");
        assert_eq!(chunks.next().unwrap().unwrap_err().to_string(), "cannot read the operations: torn");
        assert!(chunks.next().is_none());
    }
}
