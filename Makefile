# Everything a person types. `make help` lists it.

TOOLS := $(CURDIR)/.tools
DENY := $(TOOLS)/bin/cargo-deny
DENY_VERSION := 0.20.2

.PHONY: help demo build test check fix bench bench-strategies bench-ten-million bench-lanes bench-branches bench-opsqueue bench-peers kill histories

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 18

demo: ## Build, start a server on loopback, submit real work, run consumers, show the results
	cargo run --release --bin windlass -- demo

build: ## The release binary, target/release/windlass
	cargo build --release --bin windlass

test: ## Everything: unit, model, whole-system, crash tests
	cargo build --workspace --all-targets
	cargo test --workspace
	sh .ci/s3
	sh .ci/parquet

check: $(DENY) ## What CI runs first: format, lints, layering, licences, docs
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	sh .ci/layering
	$(DENY) check --hide-inclusion-graph licenses bans sources
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items

fix: ## Write what `check` would complain about, where that can be done
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

bench: build bench-opsqueue ## Measure, side by side with Opsqueue, and write docs/benchmarks.md
	cargo build --release -p windlass-bench
	target/release/windlass-bench

bench-strategies: build ## What a reserve costs for every strategy, in about half an hour; writes docs/benchmarks-strategies.md
	cargo build --release -p windlass-bench
	target/release/windlass-bench --set strategies --report docs/benchmarks-strategies.md

bench-ten-million: build ## Ten million pending submissions: memory, restart; writes docs/benchmarks-ten-million.md
	cargo build --release -p windlass-bench
	target/release/windlass-bench --set ten-million --report docs/benchmarks-ten-million.md

bench-lanes: build ## A hundred million tasks in a lane: memory, dispatch, restart; writes docs/benchmarks-lanes.md
	cargo build --release -p windlass-bench
	target/release/windlass-bench --set lanes --report docs/benchmarks-lanes.md

bench-branches: build ## A branch of ten million entries: staging, commits, reading; writes docs/benchmarks-branches.md
	cargo build --release -p windlass-bench
	target/release/windlass-bench --set branches --report docs/benchmarks-branches.md

bench-opsqueue: ## Build the driver of the peer
	cd bench/opsqueue && cargo build --release --locked --bins -p opsqueue -p opsqueue-bench

bench-peers: build bench-opsqueue ## Install and measure what a user would pick instead, and write docs/benchmarks-peers.md
	sh bench/peers/install
	cd bench/peers && cargo build --release
	bench/peers/target/release/peers-bench

kill: ## A long campaign: the server killed 1,000 times under load of chunks, of lanes and of hard limits each, and 300 times of branches
	cargo build --workspace --all-targets
	WINDLASS_KILLS=1000 cargo test -p windlass-tests --test killed --test lanes_killed --test hard_limits_killed -- --nocapture
	WINDLASS_KILLS=300 cargo test -p windlass-tests --test branches_killed -- --nocapture

histories: ## A long campaign: 10,000 random histories of branches, some cut off by kills, each of which must have an order that explains it
	cargo build --workspace --all-targets
	WINDLASS_HISTORIES=10000 cargo test --workspace --test histories -- --nocapture

$(DENY):
	cargo install --locked cargo-deny --version $(DENY_VERSION) --debug --root $(TOOLS)
