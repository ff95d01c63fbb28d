# What a person runs is what CI runs. `make help` lists it.

CARGO ?= cargo
# Tests to run: make test TESTS=containerd
TESTS ?=

# Suites that take minutes each and are left out of `make test`.
TIERS = kubelet numa_vm systemd_vm

.DEFAULT_GOAL := help
.PHONY: help run test tiers vectors lint fmt bench build tools clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  DEMO_SECONDS=20 make run     ends by itself after 20 s"
	@echo "  TESTS=containerd make test   only tests whose name contains the word"
	@echo "  OXALYST_VECTORS=DIR make vectors  further vectors, too"
	@echo "  OXALYST_CACHE=DIR            where what was fetched is kept (default ~/.cache/oxalyst)"

run: tools ## the mesh on this machine: containerd with NRI (as root), five services, demo pods, until Ctrl-C
	$(CARGO) build --release --workspace --bins
	@$${CARGO_TARGET_DIR:-target}/release/demo

# The suites start the services' binaries, which `cargo test` alone does not build; both targets in one graph compile once.
test: tools ## every test; those on a real containerd too where this machine can run one
	$(CARGO) build --workspace --bins --tests
	$(CARGO) test --workspace --no-fail-fast -- --show-output $(TESTS)

tiers: tools ## the suites that take minutes: a real kubelet with its control plane, a machine of four NUMA nodes
	$(CARGO) build --workspace --bins
	$(CARGO) test --workspace --no-fail-fast $(addprefix --test ,$(TIERS)) -- --show-output $(TESTS)

# Cases as data, of which the tree holds its own: OXALYST_VECTORS=DIR make vectors runs those of another folder as well.
vectors: tools ## the allocator's language-neutral vectors; OXALYST_VECTORS=DIR adds a folder of further ones
	OXALYST_VECTORS="$(OXALYST_VECTORS)" $(CARGO) test -p oxalyst-planner --test vectors -- --nocapture

lint: tools ## fmt, clippy, docs, dependencies: no warning is let through
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --workspace $(addprefix --test ,$(TIERS)) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	deny="$$(integration/lab/cargo-deny.sh)" && "$$deny" --log-level error check bans licenses sources

fmt: ## formats the sources
	$(CARGO) fmt --all

bench: tools ## measures the budgets, prints them, writes target/bench.json
	$(CARGO) build --release --workspace --bins
	@$${CARGO_TARGET_DIR:-target}/release/bench

build: tools ## debug binaries of everything
	$(CARGO) build --workspace --bins

# A Rust that came without them needs a linker, a formatter and clippy.
tools:
	@command -v cc >/dev/null || { \
	    echo "installing a C compiler (the linker, and ring's few C files)"; \
	    { apt-get install -y --no-install-recommends gcc libc6-dev \
	      || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev; }; } >/dev/null; }
	@$(CARGO) fmt --version >/dev/null 2>&1 && $(CARGO) clippy --version >/dev/null 2>&1 \
	    || rustup component add rustfmt clippy

clean: ## removes what was built here
	$(CARGO) clean
