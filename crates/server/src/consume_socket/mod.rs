//! The consumers' WebSocket: sessions that reserve, report and re-assert by binary frames.

mod conversation;
mod work;

use crate::http::accept::ConnectionPlace;
use crate::http_refused;
use crate::limits::READ_BUFFER_BYTES;
use crate::roles::dispatcher::{Connected, Event, ToSession};
use crate::service::Service;
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use conversation::{Conversation, Goodbye};
use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::sync::mpsc;
use windlass_api::frames::{self, ClientFrame, FRAME_BYTES_MAX, PROTOCOL_VERSION, SOCKET_BUFFER_BYTES};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::batch::reserver::SessionId;

/// Opens the WebSocket of consumers: binary frames, which `docs/protocol.md` describes.
#[utoipa::path(get, path = "/v1/consume", tag = "work", responses((status = 101, description = "The WebSocket is open.")))]
pub(crate) async fn consume(
    State(service): State<Service>,
    place: Option<Extension<ConnectionPlace>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => {
            let detail = format!(
                "{}; this path is a WebSocket, and /v1/reserve is for plain HTTP",
                rejection.body_text()
            );
            return http_refused(Problem::new(ProblemCode::MalformedRequest, detail));
        }
    };
    let upgrade = upgrade
        .max_message_size(FRAME_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(SOCKET_BUFFER_BYTES);
    upgrade.on_upgrade(move |socket| {
        let conversations = service.conversations().clone();
        conversations.track_future(async move {
            converse(service, socket).await;
            // The conversation takes its connection's place until its end.
            drop(place);
        })
    })
}

async fn converse(service: Service, mut socket: WebSocket) {
    let (work_out, work) = mpsc::unbounded_channel();
    // A peer that reads nothing must not keep the task for ever.
    let patience = Duration::from_millis(service.config().header_timeout_ms);
    match hello(&service, &mut socket, work_out).await {
        Ok(connected) => Conversation::new(service, connected, socket, work).run(patience).await,
        Err(goodbye) => {
            let last_words = async {
                drop(socket.send(goodbye.message()).await);
                drop(socket.close().await);
            };
            drop(tokio::time::timeout(patience, last_words).await);
        }
    }
}

async fn hello(
    service: &Service,
    socket: &mut WebSocket,
    work_out: mpsc::UnboundedSender<ToSession>,
) -> Result<Connected, Goodbye> {
    let first =
        tokio::time::timeout(Duration::from_millis(service.config().header_timeout_ms), socket.next()).await;
    let Ok(Some(Ok(Message::Binary(bytes)))) = first else {
        return Err(Goodbye::protocol("the first frame is a binary Hello, sent without delay"));
    };
    let Ok(ClientFrame::Hello { version, session, name }) = frames::decode(&bytes) else {
        return Err(Goodbye::protocol("the first frame is a Hello"));
    };
    if version != PROTOCOL_VERSION {
        let reason = format!("this server speaks version {PROTOCOL_VERSION} of the protocol, not {version}");
        return Err(Goodbye::protocol(reason));
    }
    let before = session.map(SessionId);
    let name = name.chars().take(100).collect();
    let connect = |reply| Event::Connect { before, name, out: work_out, reply };
    service.ask(connect).await.map_err(|_| Goodbye::away())
}
