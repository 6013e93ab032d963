//! Runs many sequences, each from its own seed, and says how to replay the one that fails.

/// Runs `sequence` for `count` seeds, or for the one that the environment names.
///
/// `WINDLASS_MODEL_SEQUENCES` is the number of seeds to run, `WINDLASS_MODEL_SEED` the only one.
pub(crate) fn run(test: &'static str, count: u64, sequence: impl Fn(u64)) {
    let seeds = match number_from_environment("WINDLASS_MODEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from_environment("WINDLASS_MODEL_SEQUENCES").unwrap_or(count),
    };
    for seed in seeds {
        let _replay = SaysHowToReplay { test, seed };
        sequence(seed);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the machine has no environment; the test that feeds it has one"
)]
fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Speaks only if the sequence it guards panics.
struct SaysHowToReplay {
    test: &'static str,
    seed: u64,
}

impl Drop for SaysHowToReplay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let SaysHowToReplay { test, seed } = self;
            eprintln!("seed {seed} failed; replay it with");
            let target = env!("CARGO_CRATE_NAME");
            eprintln!("    WINDLASS_MODEL_SEED={seed} cargo test -p windlass-core --test {target} {test}");
        }
    }
}
