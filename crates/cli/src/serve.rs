//! `windlass serve`: runs a server until it is told to stop.

use crate::args::{Global, Serve};
use crate::exit::{Exit, print, print_line};
use crate::log;
use crate::signals::StopSignals;
use windlass_server::config::Config;
use windlass_server::node::{Node, NodeFault};

/// What an operator wants to read: what the server says itself, and what worries its libraries.
const QUIET: &str = "warn,windlass=info,openraft=error";

pub(crate) async fn run(global: &Global, serve: Serve) -> Result<(), Exit> {
    log::start(global.verbose, QUIET, serve.log_format);
    let is_check = serve.check;
    let config = config_of(global, serve)?;
    if is_check {
        return check(config);
    }
    let mut signals = StopSignals::listen()?;
    let data = config.data.display().to_string();
    let node = Node::start(config).await.map_err(exit_of)?;
    print_line(&format!("listening on http://{}, data in {data}", node.address()))?;
    tracing::info!(address = %node.address(), objects = node.objects(), "ready");

    let fault = tokio::select! {
        () = signals.next() => None,
        fault = node.fault() => Some(fault),
    };
    if let Some(fault) = fault {
        return Err(Exit::Fault(fault.to_string()));
    }
    eprintln!("stopping; a second signal stops at once");
    tokio::select! {
        stopped = node.stop() => stopped.map_err(exit_of),
        () = signals.next() => Err(Exit::Refused("stopped at once: consumers had no time to report".into())),
    }
}

/// Flags and environment over the file over the defaults.
fn config_of(global: &Global, serve: Serve) -> Result<Config, Exit> {
    let mut config = match &serve.config {
        None => Config::default(),
        Some(path) => {
            let wrong = |what: String| Exit::Usage(format!("the configuration {}: {what}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
            Config::from_toml(&text).map_err(wrong)?
        }
    };
    set(&mut config.listen, serve.listen);
    set(&mut config.data, serve.data);
    set(&mut config.object_bytes_max, serve.object_bytes_max);
    set(&mut config.heartbeat_ms, serve.heartbeat_ms);
    set(&mut config.grace_ms, serve.grace_ms);
    set(&mut config.drain_ms, serve.drain_ms);
    set(&mut config.connections_max, serve.connections_max);
    config.objects = serve.objects.or(config.objects);
    config.token = global.token.clone().or(config.token);
    Ok(config)
}

fn set<T>(setting: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *setting = said;
    }
}

fn check(mut config: Config) -> Result<(), Exit> {
    if let Some(problem) = config.problem() {
        return Err(Exit::Usage(problem));
    }
    config.token = config.token.map(|_| "(set; not shown)".into());
    let text = toml::to_string(&config).expect("a configuration has a TOML form");
    print(text.as_bytes())
}

fn exit_of(fault: NodeFault) -> Exit {
    match fault {
        NodeFault::Config(sentence) => Exit::Usage(sentence),
        NodeFault::Listen { .. } => Exit::Refused(fault.to_string()),
        NodeFault::Store(_) | NodeFault::Order(_) | NodeFault::Thread(_) => Exit::Fault(fault.to_string()),
    }
}
