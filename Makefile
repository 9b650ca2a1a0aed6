# Commands of the project. `make` without a target lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export LEASEHOLD_CACHE ?= $(HOME)/.cache/leasehold
BUF         = "$$(scripts/setup.sh buf)/buf"
CARGO_DENY := $(LEASEHOLD_CACHE)/cargo-deny-0.20.2/bin/cargo-deny
# Folder of the tools of the Python client, determined when a command needs it.
PYTHON_BIN  = "$$(scripts/setup.sh python)/bin"
# Clients with their own setup.sh, build.sh, check.sh and test.sh.
CLIENTS    := go java typescript

# Scale of the counts and durations of the tests; 1 is the full scale, as in `make soak`.
export LEASEHOLD_TEST_SCALE ?= 0.1

.PHONY: help setup dev test quick test-chart test-cli test-image test-python $(CLIENTS:%=test-%) soak soak-fuzz model soak-model simulate soak-simulate soak-recovery check fix bench

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what tests and checks need (as root on Debian), or print how to
	@scripts/setup.sh

dev: ## Run the broker on the embedded store; needs only cargo
	@exec scripts/dev.sh

test: ## Run all tests, with counts scaled by LEASEHOLD_TEST_SCALE (0.1)
	scripts/preflight.sh disk target 8 CARGO_TARGET_DIR
	scripts/setup.sh
	scripts/preflight.sh crates leasehold-server leasehold-cli leasehold-tests
	scripts/run_tests.py

# Changes are compiled incrementally, which the profile disables for the first build.
quick: export CARGO_INCREMENTAL = 1
quick: ## Check formatting, lint changed crates, run unit tests and lock conformance tests (memory, one Redis)
	cargo fmt --all --check
	changed="$$(scripts/changed_crates.sh)"; [[ -z "$$changed" ]] || cargo clippy --locked --all-targets $$changed -- -D warnings
	cargo test --locked --profile quickstart --lib --bins
	cargo test --locked --profile quickstart -p leasehold-tests --test conformance -- stores::memory stores::redis

# LEASEHOLD_SERVER names an existing broker binary to use instead of building one.
test-python: setup ## Check and test the Python client alone
	client-sdk/python/check.sh $(PYTHON_BIN)
	[[ -n "$${LEASEHOLD_SERVER:-}" ]] || cargo build -p leasehold-server --bins
	client-sdk/python/test.sh

test-go: ## Check and test the Go client alone
test-java: ## Check and test the Java client alone
test-typescript: ## Check and test the TypeScript client alone
$(CLIENTS:%=test-%): test-%: setup
	client-sdk/$*/check.sh
	[[ -n "$${LEASEHOLD_SERVER:-}" ]] || cargo build -p leasehold-server --bins
	client-sdk/$*/test.sh

test-chart: setup ## Check and test the Helm chart alone
	deploy/helm/check.sh $(PYTHON_BIN)
	scripts/run_tests.py operations::loads::chart_upgrade operations::waits::liveness chart

test-image: setup ## Build the container image without a daemon, inspect it, and run it
	deploy/docker/test.sh

test-cli: setup ## Run the tests of the command line alone
	scripts/run_tests.py cli/lib:: cli::

soak: export LEASEHOLD_TEST_SCALE = 1
soak: setup ## Run all tests in full, in the release profile
	scripts/run_tests.py --release

model: ## Run one seed (SEED) of the model of clients and an adversary (STORE: memory, redlock, recovery), and print its history
	cargo run --quiet --locked -p leasehold-tests --bin model -- --store "$(or $(STORE),memory)" --seed "$(SEED)"

soak-model: setup ## Run the model at random and exhaustively for an hour and a quarter, then plant faults and find them; resumes
	cargo build --locked -p leasehold-tests --bin model
	for store in memory node cluster redlock redlock-scripts recovery; do \
		"$${CARGO_TARGET_DIR:-target}/debug/model" --store "$$store" --progress "$${CARGO_TARGET_DIR:-target}/model-$$store"; \
	done
	for locks in 1 2; do \
		cargo run --release --locked -p leasehold-tests --bin model -- --exhaustive --locks "$$locks" --minutes 30; \
	done
	scripts/planted.py

soak-fuzz: ## Fuzz each kind of input for an hour of CPU time; continues after an interruption
	scripts/fuzz.py --soak

simulate: ## Simulate brokers in virtual time with the plan of SEED, and print what violates a guarantee
	cargo run --release -p leasehold-tests --bin simulate -- --seed $(or $(SEED),$(error SEED=n is missing))

# The progress is kept, so that an interrupted run continues. Remove the file to begin again.
soak-simulate: ## Simulate at least 2,000 seeds, and as many as two hours allow; continues after an interruption
	mkdir -p target
	cargo run --release -p leasehold-tests --bin simulate -- --count 2000 --soak-seconds 7200 --threads 2 \
		--progress target/simulate.progress

soak-recovery: export LEASEHOLD_TEST_SCALE = 1
soak-recovery: setup ## Measure the recovery after 140 fail-overs and 20 restarts with the default settings; prints the times
	scripts/run_tests.py --release sentinel::loads::recovery_time sentinel::loads::held_leases redis::loads::lost_writes

# The first check of cargo-deny downloads the crates that the second one, which works offline, needs.
check: setup ## Check formatting, lints, dependencies (and advisories if ADVISORY_DB names a clone), docs and API
	scripts/setup.sh check
	python3 -m unittest discover --start-directory scripts/tests
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO_DENY) --locked --workspace check bans licenses sources
	[[ -z "$${ADVISORY_DB:-}" ]] || scripts/check_advisories.sh $(CARGO_DENY) "$$ADVISORY_DB"
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace
	git ls-files '*.md' | xargs $(PYTHON_BIN)/mdformat --check
	proto/check.sh
	$(BUF) lint proto
	$(BUF) breaking proto --against proto/released.binpb
	deploy/helm/check.sh $(PYTHON_BIN)
	client-sdk/python/check.sh $(PYTHON_BIN)
	for client in $(CLIENTS); do client-sdk/$$client/check.sh; done

fix: setup ## Apply the formatters and the automatic fixes of lints
	cargo clippy --fix --allow-dirty --allow-staged --workspace --all-targets
	cargo fmt --all
	git ls-files '*.md' | xargs $(PYTHON_BIN)/mdformat
	deploy/helm/check.sh $(PYTHON_BIN) --fix
	client-sdk/python/check.sh $(PYTHON_BIN) --fix
	for client in $(CLIENTS); do client-sdk/$$client/check.sh --fix; done

bench: setup ## Benchmark the broker against its limits and other systems; prints tables
	cargo build --profile dist --workspace --bins
	cargo bench --profile dist --workspace --bench broker
