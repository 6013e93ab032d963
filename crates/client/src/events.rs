//! The event stream: server-sent events, as the HTML standard describes them, read as changes of submissions.

use crate::client::Client;
use crate::error::{ClientError, with_causes};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use std::collections::VecDeque;
use std::fmt;
use windlass_api::json::SubmissionEvent;

/// An event is a few hundred bytes; a line this long is not one.
const LINE_BYTES_MAX: usize = 1 << 20;

/// A change of a submission.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// Where the submission stands now.
    pub event: SubmissionEvent,
}

/// What happened to a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It came in.
    Submitted,
    /// Some of its chunks were settled, or it has another round.
    Progress,
    /// It ended.
    Over,
}

/// Changes as they happen, from one connection.
pub struct EventStream {
    client: Client,
    body: BoxStream<'static, reqwest::Result<Bytes>>,
    parser: Parser,
    ready: VecDeque<Change>,
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl EventStream {
    pub(crate) fn new(client: Client, response: reqwest::Response) -> EventStream {
        let body = response.bytes_stream().boxed();
        EventStream { client, body, parser: Parser::default(), ready: VecDeque::new() }
    }

    /// The next change; none when the server closes the stream. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Change>, ClientError> {
        while self.ready.is_empty() {
            let Some(bytes) = self.body.next().await else { return Ok(None) };
            let bytes = bytes.map_err(|error| self.client.unreachable(with_causes(&error)))?;
            let messages = self.parser.feed(&bytes).map_err(|what| self.client.protocol(what))?;
            for message in messages {
                self.ready.extend(message.into_change().map_err(|what| self.client.protocol(what))?);
            }
        }
        Ok(self.ready.pop_front())
    }
}

/// One event as it stood on the wire.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    name: String,
    data: String,
}

impl Message {
    /// The change it tells; none if a newer server tells of something that this client does not know.
    fn into_change(self) -> Result<Option<Change>, String> {
        let kind = match self.name.as_str() {
            "submitted" => ChangeKind::Submitted,
            "progress" => ChangeKind::Progress,
            "over" => ChangeKind::Over,
            _ => return Ok(None),
        };
        let event = serde_json::from_str(&self.data)
            .map_err(|error| format!("an event is not as expected: {error}"))?;
        Ok(Some(Change { kind, event }))
    }
}

/// Cuts bytes into lines and lines into messages, wherever the network cut them.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    after_cr: bool,
    name: String,
    data: Option<String>,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Message>, String> {
        let mut messages = Vec::new();
        for &byte in bytes {
            let ends_crlf = std::mem::replace(&mut self.after_cr, byte == b'\r') && byte == b'\n';
            if ends_crlf {
                continue;
            }
            if byte == b'\n' || byte == b'\r' {
                let line = std::mem::take(&mut self.line);
                messages.extend(self.end_line(&String::from_utf8_lossy(&line)));
            } else if self.line.len() < LINE_BYTES_MAX {
                self.line.push(byte);
            } else {
                return Err(format!("a line of its event stream is longer than {LINE_BYTES_MAX} bytes"));
            }
        }
        Ok(messages)
    }

    fn end_line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            return self.data.take().map(|data| Message { name, data });
        }
        let line = line.strip_prefix('\u{feff}').unwrap_or(line);
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => match &mut self.data {
                None => self.data = Some(value.to_owned()),
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
            },
            // Comments keep the connection alive; ids and retry times are not used.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::batch::submissions::SubmissionState;

    fn message(name: &str, data: &str) -> Message {
        Message { name: name.into(), data: data.into() }
    }

    #[test]
    fn events_are_read_whatever_the_line_ends_are_and_wherever_the_network_cuts() {
        let text = "event: progress\ndata: {\"a\":\ndata: 1}\n\n: alive\n\nevent:over\nid: 3\ndata:x\n\ndata: unnamed\n\n";
        let expected = [message("progress", "{\"a\":\n1}"), message("over", "x"), message("", "unnamed")];
        for ends in ["\n", "\r\n", "\r"] {
            let bytes = text.replace('\n', ends).into_bytes();
            for cut in 1..bytes.len() {
                let mut parser = Parser::default();
                let got: Vec<Message> =
                    bytes.chunks(cut).flat_map(|part| parser.feed(part).unwrap()).collect();
                assert_eq!(got, expected, "{ends:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn an_event_without_its_empty_line_is_not_told_yet() {
        let mut parser = Parser::default();
        assert_eq!(parser.feed(b"event: over\ndata: x\n").unwrap(), []);
        assert_eq!(parser.feed(b"\n").unwrap(), [message("over", "x")]);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut parser = Parser::default();
        assert!(parser.feed(&vec![b'x'; LINE_BYTES_MAX]).is_ok());
        assert!(parser.feed(b"x").is_err());
    }

    #[test]
    fn known_events_become_changes_unknown_ones_are_passed_over_and_broken_ones_are_refused() {
        let data =
            r#"{"submission":"7","state":"failed","chunks":{"total":3,"done":1,"failed":1,"skipped":1}}"#;
        let change = message("over", data).into_change().unwrap().unwrap();
        assert_eq!((change.kind, change.event.state), (ChangeKind::Over, SubmissionState::Failed));
        assert_eq!(message("moon_phase", "{}").into_change(), Ok(None));
        assert!(message("over", "{}").into_change().is_err());
    }
}
