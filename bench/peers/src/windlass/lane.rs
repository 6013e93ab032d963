//! Tasks of a lane: many in one request, and one by one by producers that wait for each.

use super::{SOCKET, TASKS_AT_ONCE};
use crate::system::{Numbers, Runner, Tally, Work, numbers};
use anyhow::{Context, bail};
use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::time::Instant;
use windlass_client::frames::{ClientFrame, ServerFrame, TaskToAdd};
use windlass_client::lanes::TaskRequest;
use windlass_client::{Blob, Client, ConsumeSocket};

pub(super) const LANE: &str = "bench";
/// Whose the tasks are, in turns: the lane is shared between so many keys.
const KEYS: u64 = 1_000;
/// Requests on the way at once when filling.
const REQUESTS_AT_ONCE: usize = 8;

fn key(nth: u64) -> String {
    format!("tenant-{}", nth % KEYS)
}

fn task(nth: u64) -> TaskRequest {
    let payload = Some(Blob(Work::Tasks.payload(nth).into_bytes()));
    TaskRequest { key: key(nth), payload, ..TaskRequest::default() }
}

/// Adds so many tasks; ends early at `until`. Says how many are in.
pub(super) async fn fill(client: &Client, tasks: u64, until: Instant) -> anyhow::Result<u64> {
    let first = stream::iter((0..tasks).step_by(TASKS_AT_ONCE as usize));
    let in_time = first.take_while(|_| std::future::ready(Instant::now() < until));
    let adding = in_time.map(|first| async move {
        let batch = (first..tasks.min(first + TASKS_AT_ONCE)).map(task).collect();
        anyhow::Ok(client.add_tasks(LANE, batch).await?.len() as u64)
    });
    adding.buffer_unordered(REQUESTS_AT_ONCE).try_fold(0, async |sum, added| Ok(sum + added)).await
}

/// Connects producers.
pub(super) async fn adders(client: &Client, way: &str, count: usize) -> anyhow::Result<Vec<Box<dyn Runner>>> {
    let mut adders: Vec<Box<dyn Runner>> = Vec::new();
    for nth in 0..count {
        let numbers = numbers(nth, count);
        adders.push(if way == SOCKET {
            let socket = ConsumeSocket::connect(client, &format!("producer {nth}"), None).await?.0;
            Box::new(BySocket { socket, numbers })
        } else {
            Box::new(ByHttp { client: client.clone(), numbers })
        });
    }
    Ok(adders)
}

/// One Add frame, its Added, and the next.
struct BySocket {
    socket: ConsumeSocket,
    numbers: Numbers,
}

#[async_trait]
impl Runner for BySocket {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let Some(nth) = self.numbers.next() else { return Ok(false) };
        let began = Instant::now();
        let payload = Some(Work::Tasks.payload(nth).into_bytes().into());
        let tasks = vec![TaskToAdd { key: key(nth), payload, ..TaskToAdd::default() }];
        let frame = ClientFrame::Add { request: nth, lane: LANE.to_owned(), tasks, idempotency_key: None };
        self.socket.send(&frame).await?;
        loop {
            match self.socket.receive().await?.context("the server closed")? {
                ServerFrame::Added { .. } => break,
                ServerFrame::Heartbeat {} => {}
                other => bail!("an add was answered with {other:?}"),
            }
        }
        tally.completed(began);
        Ok(true)
    }
}

/// One request, its answer, and the next.
struct ByHttp {
    client: Client,
    numbers: Numbers,
}

#[async_trait]
impl Runner for ByHttp {
    async fn round(&mut self, tally: &mut Tally) -> anyhow::Result<bool> {
        let Some(nth) = self.numbers.next() else { return Ok(false) };
        let began = Instant::now();
        self.client.add_tasks(LANE, vec![task(nth)]).await?;
        tally.completed(began);
        Ok(true)
    }
}
