//! `windlass demo`: a real server, two tenants' work and some consumers, all in this process.
//!
//! Nothing is made up: the work is handed in, handed out, computed and read back as any other, over the loopback socket,
//! and the results are compared with the same sums made on the spot.

use crate::args::{Demo, Global};
use crate::bars;
use crate::exit::{Exit, print, print_line};
use crate::signals::StopSignals;
use crate::table::{aligned, grouped, short};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use indicatif::MultiProgress;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use windlass_client::{
    Chunk, Client, Consumer, Failure, MetaValue, Output, Producer, SubmissionId, SubmitRequest, Tally,
};
use windlass_server::config::Config;
use windlass_server::node::Node;

/// Lines in a chunk.
const LINES_PER_CHUNK: usize = 50;

/// Rounds of the checksum over each line: enough that there is something to watch.
const CHECKSUM_ROUNDS: usize = 500;

/// What a tenant wants done with its lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    CountWords,
    Checksum,
}

/// The tenants.
const TENANTS: [(&str, Task); 2] = [("otter", Task::CountWords), ("heron", Task::Checksum)];

impl Task {
    const fn name(self) -> &'static str {
        match self {
            Task::CountWords => "count-words",
            Task::Checksum => "checksum",
        }
    }

    fn of(name: &[u8]) -> Option<Task> {
        [Task::CountWords, Task::Checksum].into_iter().find(|task| task.name().as_bytes() == name)
    }

    /// The number that a line gives; the sum over all lines is the result.
    fn compute(self, line: &[u8]) -> u64 {
        match self {
            Task::CountWords => {
                line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).count() as u64
            }
            Task::Checksum => (0..CHECKSUM_ROUNDS).fold(0, |sum, _| checksum(sum, line)),
        }
    }
}

/// FNV-1a, folded to 32 bits so that sums of many do not overflow.
fn checksum(begin: u64, line: &[u8]) -> u64 {
    let hash = line.iter().fold(begin ^ 0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32) ^ (hash & 0xffff_ffff)
}

/// A tenant's lines: words that follow from the tenant's name and the line's number.
fn lines(tenant: &'static str, chunks: usize) -> impl Iterator<Item = String> {
    const WORDS: [&str; 8] = ["rope", "anchor", "turn", "load", "deck", "crank", "chain", "harbour"];
    (0..chunks * LINES_PER_CHUNK).map(move |number| {
        let chance = checksum(number as u64, tenant.as_bytes());
        let words = (0..3 + chance % 9).map(|nth| WORDS[(checksum(chance, &[nth as u8]) % 8) as usize]);
        words.collect::<Vec<_>>().join(" ")
    })
}

/// A tenant's submission, and what became of it.
#[derive(Debug)]
struct Job {
    tenant: &'static str,
    task: Task,
    id: SubmissionId,
    chunks: u64,
    expected: u64,
}

pub(crate) async fn run(global: &Global, demo: Demo) -> Result<(), Exit> {
    crate::log::start(global.verbose, "error", crate::log::Format::Text);
    let mut signals = StopSignals::listen()?;
    let temporary = match demo.data {
        Some(_) => None,
        None => {
            Some(tempfile::tempdir().map_err(|error| Exit::Fault(format!("no temporary folder: {error}")))?)
        }
    };
    let data =
        demo.data.clone().or_else(|| temporary.as_ref().map(|it| it.path().to_owned())).unwrap_or_default();
    let node = start_server(data.clone()).await?;
    let client = Client::new(&format!("http://{}", node.address()))?;
    eprintln!("a server at {}, with its data in {}", client.server(), data.display());

    let shown = tokio::select! {
        shown = show_work(&client, &demo) => shown,
        () = signals.next() => Err(Exit::Refused("stopped before the work was done".into())),
    };
    let stays =
        shown.is_ok() && !demo.exit && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if stays {
        let first = shown.as_ref().ok().copied();
        say_where_to_look(client.server(), first)?;
        signals.next().await;
    }
    // Its connections are idle; open ones would keep the server from stopping at once.
    drop(client);
    node.stop().await.map_err(|fault| Exit::Fault(fault.to_string()))?;
    shown.map(drop)
}

async fn start_server(data: std::path::PathBuf) -> Result<Node, Exit> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = Config { listen, data, drain_ms: 1_000, ..Config::default() };
    Node::start(config).await.map_err(|fault| Exit::Fault(fault.to_string()))
}

/// Does the work and shows it; gives the first submission's id.
async fn show_work(client: &Client, demo: &Demo) -> Result<SubmissionId, Exit> {
    let begin = Instant::now();
    let producer = Producer::new(client.clone());
    let jobs =
        try_join_all(TENANTS.map(|(tenant, task)| submit(&producer, tenant, task, demo.chunks))).await?;

    let (stop, stopped) = watch::channel(());
    let consumers: Vec<_> = (1..=demo.consumers.max(1))
        .map(|nth| tokio::spawn(consume(client.clone(), nth, stopped.clone())))
        .collect();
    drop(stopped);
    let bars = MultiProgress::new();
    let rows = try_join_all(jobs.iter().map(|job| follow(&producer, job, &bars))).await?;
    drop(stop);
    let mut tallies = Vec::new();
    for consumer in consumers {
        tallies.push(consumer.await.map_err(|error| Exit::Fault(error.to_string()))??);
    }

    let head = ["TENANT", "WORK", "SUBMISSION", "CHUNKS", "LINES", "RESULT", "CHECKED", "TOOK"];
    print(aligned(&head, &rows).as_bytes())?;
    let shares: Vec<String> = tallies.iter().map(|tally| tally.completed.to_string()).collect();
    let chunks: u64 = jobs.iter().map(|job| job.chunks).sum();
    print_line(&format!(
        "\n{} chunks in {}, by {} consumers ({} chunks)",
        grouped(chunks),
        short(begin.elapsed()),
        shares.len(),
        shares.join(", ")
    ))?;
    Ok(jobs[0].id)
}

async fn submit(producer: &Producer, tenant: &'static str, task: Task, chunks: usize) -> Result<Job, Exit> {
    let request = SubmitRequest {
        metadata: [("tenant", tenant), ("work", task.name())]
            .map(|(field, value)| (field.to_owned(), MetaValue::Text(value.into())))
            .into(),
        opaque: Some(windlass_client::Blob(task.name().into())),
        ..SubmitRequest::default()
    };
    let chunk_size = NonZeroUsize::new(LINES_PER_CHUNK).expect("a chunk has lines");
    let submitted = producer.submit_operations(lines(tenant, chunks.max(1)), chunk_size, request).await?;
    let expected = lines(tenant, chunks.max(1)).map(|line| task.compute(line.as_bytes())).sum();
    Ok(Job { tenant, task, id: submitted.id, chunks: submitted.chunks, expected })
}

async fn consume(client: Client, nth: usize, mut stopped: watch::Receiver<()>) -> Result<Tally, Exit> {
    let consumer = Consumer::builder(client).name(format!("demo-{nth}")).concurrency(4).prefetch(8);
    let tally = consumer.run(compute, async move { while stopped.changed().await.is_ok() {} }).await?;
    Ok(tally)
}

/// What a consumer does with a chunk: the sum over its lines.
async fn compute(chunk: Chunk) -> Result<Output, Failure> {
    let Some(task) = Task::of(chunk.opaque()) else {
        return Err(Failure::new("this is not the demo's work"));
    };
    let operations = chunk.operations().await?;
    let sum: u64 = operations.iter().map(|line| task.compute(line)).sum();
    chunk.output(sum.to_string()).await
}

/// Follows a submission to its end, adds up its results, and gives its row of the table.
async fn follow(producer: &Producer, job: &Job, bars: &MultiProgress) -> Result<Vec<String>, Exit> {
    let begin = Instant::now();
    let bar = bars.add(bars::chunks(job.tenant));
    let sum = async {
        let mut outputs = std::pin::pin!(producer.results(job.id));
        let mut sum = 0;
        while let Some(result) = outputs.try_next().await? {
            let text = String::from_utf8_lossy(&result.output);
            sum += text
                .parse::<u64>()
                .map_err(|error| Exit::Fault(format!("chunk {}: {error}", result.chunk)))?;
        }
        Ok::<u64, Exit>(sum)
    };
    let wait = async { Ok(producer.wait(job.id, |event| bars::show_event(&bar, event)).await?) };
    let (sum, info) = tokio::try_join!(sum, wait)?;
    let took: Duration = begin.elapsed();
    bar.finish();
    if sum != job.expected {
        return Err(Exit::Fault(format!(
            "{}'s results add up to {sum}, and should to {}: please report this",
            job.tenant, job.expected
        )));
    }
    Ok(vec![
        job.tenant.into(),
        job.task.name().into(),
        job.id.to_string(),
        grouped(info.chunks.done),
        grouped(info.chunks.done * LINES_PER_CHUNK as u64),
        grouped(sum),
        "as expected".into(),
        short(took),
    ])
}

fn say_where_to_look(server: &str, submission: Option<SubmissionId>) -> Result<(), Exit> {
    let id = submission.map_or_else(String::new, |id| id.to_string());
    print_line(&format!(
        "\nThe server is still there. In another terminal:\n\
         \n  export WINDLASS_SERVER={server}\
         \n  windlass submissions list\
         \n  windlass submissions show {id}\
         \n  windlass submissions results {id} | head -c 60\
         \n  seq 1000 | windlass submit --chunks-from - --chunk-size 10 --metadata tenant=me\
         \n  windlass work --exec 'sort -n | tail -1' --concurrency 4 --until-idle\
         \n  curl {server}/v1/submissions?metadata=tenant:otter\
         \n  curl {server}/v1/status\
         \n  curl {server}/metrics\
         \n\nCtrl-C ends it."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_tenant_are_always_the_same_and_differ_from_another_tenants() {
        let all = |tenant| lines(tenant, 3).collect::<Vec<_>>();
        assert_eq!(all("otter").len(), 3 * LINES_PER_CHUNK);
        assert_eq!(all("otter"), all("otter"));
        assert_ne!(all("otter"), all("heron"));
    }

    #[test]
    fn tasks_are_found_by_their_names() {
        for (_, task) in TENANTS {
            assert_eq!(Task::of(task.name().as_bytes()), Some(task));
        }
        assert_eq!(Task::of(b"dance"), None);
        assert_eq!(Task::CountWords.compute(b"rope  turn load"), 3);
    }
}
