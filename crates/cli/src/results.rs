//! `windlass submissions results`: writes outputs in the order of the chunks, as they come.

use crate::args::Results;
use crate::exit::{Exit, cannot_write};
use crate::table::counted;
use futures_util::{StreamExt, TryStreamExt};
use std::fs::File;
use std::io::{BufWriter, Write};
use windlass_client::Producer;

pub(crate) async fn run(producer: &Producer, results: Results) -> Result<(), Exit> {
    let (name, mut out): (String, Box<dyn Write + Send>) = match &results.output {
        None => ("stdout".into(), Box::new(std::io::stdout())),
        Some(path) => {
            let name = path.display().to_string();
            let file = File::create(path).map_err(|error| cannot_write(&name, &error))?;
            (name, Box::new(BufWriter::new(file)))
        }
    };
    let outputs = if results.skip_failed {
        producer.results_of_done(results.id).boxed()
    } else {
        producer.results(results.id).boxed()
    };
    let written = write(outputs, &mut *out, &name).await;
    // What came before a failure is there, whatever came after.
    out.flush().map_err(|error| cannot_write(&name, &error))?;
    let chunks = written?;
    if results.output.is_some() {
        eprintln!("wrote the outputs of {} to {name}", counted(chunks, "chunk"));
    }
    Ok(())
}

async fn write<S>(mut outputs: S, out: &mut (dyn Write + Send), name: &str) -> Result<u64, Exit>
where
    S: futures_util::Stream<Item = Result<windlass_client::ChunkResult, windlass_client::ClientError>>
        + Unpin,
{
    let mut chunks = 0;
    while let Some(result) = outputs.try_next().await? {
        out.write_all(&result.output).map_err(|error| cannot_write(name, &error))?;
        chunks += 1;
    }
    Ok(chunks)
}
