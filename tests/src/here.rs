//! A server in this process, with real sockets and real files.

use serde_json::{Value, json};
use std::net::SocketAddr;
use tempfile::TempDir;
use windlass_server::config::Config;
use windlass_server::node::Node;

/// A server in this process; its data goes with it unless it is stopped into a folder that is kept.
pub struct Here {
    node: Node,
    /// A client without retries, so that tests see every answer.
    pub http: reqwest::Client,
    /// Its data, if it has a folder of its own.
    pub folder: Option<TempDir>,
}

/// An answer of a server.
#[derive(Debug)]
pub struct Answered {
    /// The HTTP status.
    pub status: u16,
    /// The body, `Null` if it is not JSON.
    pub json: Value,
    /// The body as text.
    pub text: String,
    /// The headers.
    pub headers: reqwest::header::HeaderMap,
}

impl Here {
    /// A server on a free port with a fresh folder and these settings.
    pub async fn start(change: impl FnOnce(&mut Config)) -> Here {
        let folder = TempDir::new().expect("a temporary folder");
        let mut here = Here::start_in(folder.path(), change).await;
        here.folder = Some(folder);
        here
    }

    /// A server on a free port with the data of this folder.
    pub async fn start_in(folder: &std::path::Path, change: impl FnOnce(&mut Config)) -> Here {
        let mut config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data: folder.to_owned(),
            drain_ms: 200,
            ..Config::default()
        };
        change(&mut config);
        let node = Node::start(config).await.expect("the server starts");
        Here { node, http: reqwest::Client::new(), folder: None }
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.node.address())
    }

    /// Where the doors are.
    pub fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// Posts JSON.
    pub async fn post(&self, path: &str, body: Value) -> Answered {
        answered(self.http.post(self.url(path)).json(&body)).await
    }

    /// Patches with JSON.
    pub async fn patch(&self, path: &str, body: Value) -> Answered {
        answered(self.http.patch(self.url(path)).json(&body)).await
    }

    /// Gets a path.
    pub async fn get(&self, path: &str) -> Answered {
        answered(self.http.get(self.url(path))).await
    }

    /// Submits, and returns the id.
    pub async fn submit(&self, body: Value) -> String {
        let answer = self.post("/v1/submissions", body).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json["id"].as_str().expect("an id is a text").to_owned()
    }

    /// Reserves up to `max` chunks without waiting.
    pub async fn reserve(&self, max: usize) -> Vec<Value> {
        let answer = self.post("/v1/reserve", json!({"max": max, "strategy": "OldestFirst"})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json["reservations"].as_array().expect("a list").clone()
    }

    /// Drains and stops the server, and gives back its folder.
    pub async fn stop(self) -> Option<TempDir> {
        self.node.stop().await.expect("the server stops");
        self.folder
    }
}

/// Sends a request and reads its answer whole.
pub async fn answered(request: reqwest::RequestBuilder) -> Answered {
    let response = request.send().await.expect("the server answers");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.expect("the body arrives");
    Answered { status, json: serde_json::from_str(&text).unwrap_or(Value::Null), text, headers }
}

/// A reservation as the reports of it name it.
pub fn attempt_of(reservation: &Value) -> Value {
    json!({
        "submission": reservation["submission"],
        "chunk": reservation["chunk"],
        "token": reservation["token"],
    })
}

/// As [`attempt_of`], with one more field.
pub fn attempt_with(reservation: &Value, field: &str, value: Value) -> Value {
    let mut attempt = attempt_of(reservation);
    attempt[field] = value;
    attempt
}
