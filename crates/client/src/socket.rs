//! The consumers' socket: frames in, frames out, nothing else.
//!
//! For consumers that want to pipeline frames themselves; [`crate::Consumer`] is built on it.

use crate::client::Client;
use crate::error::{ClientError, with_causes};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, Stream, StreamExt};
use http::{Method, StatusCode};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
use windlass_api::frames::{
    self, ClientFrame, FRAME_BYTES_MAX, PROTOCOL_VERSION, SOCKET_BUFFER_BYTES, ServerFrame,
};

type Socket = WebSocketStream<reqwest::Upgraded>;

/// How the server greets a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The session, to be named after a reconnect.
    pub session: u64,
    /// Send some frame at least this often.
    pub heartbeat_ms: u64,
    /// How long the session outlives its connection.
    pub grace_ms: u64,
}

/// A connection to `/v1/consume`.
#[derive(Debug)]
pub struct ConsumeSocket {
    client: Client,
    socket: Box<Socket>,
}

impl ConsumeSocket {
    /// Connects and says hello, going on with an earlier session if one is named.
    pub async fn connect(
        client: &Client,
        name: &str,
        session: Option<u64>,
    ) -> Result<(ConsumeSocket, Welcome), ClientError> {
        let mut socket = ConsumeSocket { client: client.clone(), socket: Box::new(upgrade(client).await?) };
        let hello = ClientFrame::Hello { version: PROTOCOL_VERSION, session, name: name.into() };
        socket.send(&hello).await?;
        let answer = client.in_time(socket.receive()).await??;
        let welcome = match answer {
            Some(ServerFrame::Welcome { session, heartbeat_ms, grace_ms, .. }) => {
                Welcome { session, heartbeat_ms, grace_ms }
            }
            Some(ServerFrame::Refused { code, detail, retry_helps, .. }) => {
                return Err(refusal(client, &code, detail, retry_helps));
            }
            Some(ServerFrame::Draining {}) | None => {
                return Err(client.unreachable("the server is about to stop".into()));
            }
            Some(other) => return Err(client.protocol(format!("it answered hello with {other:?}"))),
        };
        Ok((socket, welcome))
    }

    /// Sends a frame at once.
    pub async fn send(&mut self, frame: &ClientFrame) -> Result<(), ClientError> {
        self.feed(frame).await?;
        self.flush().await
    }

    /// Takes a frame into the buffer: many frames then go out with one flush.
    pub async fn feed(&mut self, frame: &ClientFrame) -> Result<(), ClientError> {
        let fed = self.socket.feed(Message::Binary(frames::encode(frame).into())).await;
        fed.map_err(|error| broken(&self.client, &error))
    }

    /// Sends what is in the buffer.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        self.socket.flush().await.map_err(|error| broken(&self.client, &error))
    }

    /// The next frame; none when the server has closed. Dropping the future loses nothing.
    pub async fn receive(&mut self) -> Result<Option<ServerFrame>, ClientError> {
        next_frame(&self.client, &mut *self.socket).await
    }

    /// The two directions, for two tasks.
    pub fn split(self) -> (ConsumeSender, ConsumeReceiver) {
        let (sink, stream) = StreamExt::split(*self.socket);
        let sender = ConsumeSender { client: self.client.clone(), sink };
        (sender, ConsumeReceiver { client: self.client, stream })
    }
}

/// The way to the server.
#[derive(Debug)]
pub struct ConsumeSender {
    client: Client,
    sink: SplitSink<Socket, Message>,
}

impl ConsumeSender {
    /// Takes a frame into the buffer: many frames then go out with one flush.
    pub async fn feed(&mut self, frame: &ClientFrame) -> Result<(), ClientError> {
        self.feed_bytes(frames::encode(frame)).await
    }

    /// Takes a frame that is encoded already.
    pub async fn feed_bytes(&mut self, frame: Vec<u8>) -> Result<(), ClientError> {
        self.sink.feed(Message::Binary(frame.into())).await.map_err(|error| broken(&self.client, &error))
    }

    /// Sends what is in the buffer.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        self.sink.flush().await.map_err(|error| broken(&self.client, &error))
    }

    /// Says goodbye. What the server had sent before it heard of that can still be received.
    pub async fn close(&mut self) -> Result<(), ClientError> {
        self.sink.close().await.map_err(|error| broken(&self.client, &error))
    }
}

/// The way from the server.
#[derive(Debug)]
pub struct ConsumeReceiver {
    client: Client,
    stream: SplitStream<Socket>,
}

impl ConsumeReceiver {
    /// The next frame; none when the server has closed. Dropping the future loses nothing.
    pub async fn receive(&mut self) -> Result<Option<ServerFrame>, ClientError> {
        next_frame(&self.client, &mut self.stream).await
    }
}

async fn next_frame(
    client: &Client,
    stream: &mut (impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin),
) -> Result<Option<ServerFrame>, ClientError> {
    while let Some(message) = stream.next().await {
        match message.map_err(|error| broken(client, &error))? {
            Message::Binary(bytes) => {
                let frame = frames::decode(&bytes)
                    .map_err(|error| client.protocol(format!("it sent an unknown frame: {error}")))?;
                return Ok(Some(frame));
            }
            Message::Text(_) => return Err(client.protocol("it sent text instead of a frame".into())),
            Message::Close(Some(close)) if close.code != CloseCode::Normal => {
                return Err(client.unreachable(format!("it closed the connection: {}", close.reason)));
            }
            Message::Close(_) => return Ok(None),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
    Ok(None)
}

/// The WebSocket handshake, over the same HTTP client as everything else: one place for TLS, tokens and addresses.
async fn upgrade(client: &Client) -> Result<Socket, ClientError> {
    let key = generate_key();
    let call = client
        .call(Method::GET, &["consume"])
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", &key);
    let response = client.open_socket(&call).await?;
    let accept = response.headers().get("sec-websocket-accept").map(http::HeaderValue::as_bytes);
    if response.status() != StatusCode::SWITCHING_PROTOCOLS
        || accept != Some(derive_accept_key(key.as_bytes()).as_bytes())
    {
        return Err(client.protocol("it does not open a WebSocket at /v1/consume".into()));
    }
    let upgraded = response.upgrade().await.map_err(|error| client.unreachable(with_causes(&error)))?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(FRAME_BYTES_MAX))
        .max_frame_size(Some(FRAME_BYTES_MAX))
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(SOCKET_BUFFER_BYTES);
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
}

/// What a refusing frame says, as the error that the HTTP interface would have given.
pub(crate) fn refusal(client: &Client, code: &str, detail: String, retry_helps: bool) -> ClientError {
    use windlass_api::problem::{Problem, ProblemCode};
    match serde_json::from_value::<ProblemCode>(code.into()) {
        Ok(known) => ClientError::Problem(Problem { retry_helps, ..Problem::new(known, detail) }),
        Err(_) => client.protocol(format!("it refused with the unknown code `{code}`: {detail}")),
    }
}

fn broken(client: &Client, error: &tungstenite::Error) -> ClientError {
    client.unreachable(with_causes(error))
}
