# `make run` serves a volume, `make test` runs everything. See `make help`.

# Rust is often installed without its directory in the PATH of this shell.
export PATH := $(PATH):$(HOME)/.cargo/bin
MAKEFLAGS += --no-print-directory
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# How binaries are built: as users get them, or as `make test` builds everything once (`ci` in Cargo.toml).
PROFILE ?= release
OUT := $(TARGET)/$(PROFILE)
BIN := $(OUT)/forebay
# Release builds have flags by which they are the same bytes again.
CARGO := $(if $(filter release,$(PROFILE)),packaging/flags cargo,cargo)
# What is built of the workspace. `make test` builds all of it in one go, so that no crate is compiled twice.
ALL := --workspace --all-targets
SCOPE ?=
# Debian's python3-libnbd belongs to the system's Python, whatever else is first in PATH.
PYTHON := /usr/bin/python3

# Directory and further arguments of `make run`, for example: make run ARGS="/srv/forebay --volume-size 100G"
# Arguments of `make experiments`, for example: make experiments ARGS="--only 3"
ARGS ?=
# `make torture SEEDS=n SEED=first`, and AIM=front for runs that are all aimed at one class of fault
SEEDS ?= 100
SEED ?= 1
AIM ?=
# Seeds that `make test` runs: the same ones every time, and new ones every time.
FIXED_SEEDS ?= 150
FRESH_SEEDS ?= 50
# Names of the client tests to run (all if empty): make clients ONLY="fio guest"
ONLY ?=
# The fuzz targets are a workspace of their own. To check them takes no libFuzzer, which would be built with a C++ compiler.
FUZZ_CHECK := CUSTOM_LIBFUZZER_PATH=/dev/null cargo check --quiet --locked --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)/fuzz-check
# `make fuzz SECONDS=each`
SECONDS ?= 60
# `make crash N=images SEED=first`; without a seed, new ones.
N ?= 2000
CRASH ?=
# Arguments of `make bench`, for example: make bench BENCH="--seconds 2 --rounds 1"
BENCH ?=

.PHONY: help run build reproducible deb image dist package man test real simulated fmt fmt-check commit-check lint unit torture clients crash fuzz deny mutations bench bench-cache experiments deps deps-test deps-bench

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

run: build ## build and serve a volume from ./forebay-data (ARGS="DIR --volume-size 100G")
	$(TARGET)/release/forebay up $(ARGS)

# packaging/build strips it; what was stripped is beside it, in forebay.debug.
build: deps ## the release binary, stripped, with its symbols beside it
	packaging/build

reproducible: deps ## build it twice, in two directories, and compare every byte (two builds)
	packaging/reproducible

deb: deps ## Debian packages, in target/dist (needs cargo-deb)
	packaging/deb

image: deps ## an image for containers (OCI), in target/dist
	packaging/build
	packaging/stage
	packaging/image

dist: deps ## all that is released, in target/dist: the binary and its symbols, packages, an image
	packaging/deb
	packaging/image
	cd target/dist && sha256sum forebay forebay.debug *.deb *.tar > SHA256SUMS

package: ## live with the Debian package in a chroot: install, upgrade, remove, purge (as root, minutes)
	$(PYTHON) tests/package

man: ## manual pages, in $(TARGET)/man
	$(CARGO) build --profile $(PROFILE) -p forebay
	$(BIN) man $(TARGET)/man

test: deps-test ## everything: format, commit messages, lints, unit and property tests, torture, fuzz targets, real clients, crash images
	$(MAKE) fmt-check
	$(MAKE) commit-check
	$(MAKE) lint
	cargo build --profile ci $(ALL)
	$(MAKE) -j2 simulated real PROFILE=ci SCOPE="$(ALL)"

# The tests that read what a process prints, once more beside a busy neighbour: they wait for it.
TOLD := command. logs. set. states. service. terminal. tls.

real:
	$(MAKE) clients
	$(MAKE) clients ONLY="--busy --cache off $(TOLD)"

# Clients wait for disks and clocks much of the time; what knows no time takes what they leave.
simulated:
	nice -n 19 $(MAKE) unit
	nice -n 19 $(MAKE) torture SEEDS=$(FIXED_SEEDS) SEED=1
	nice -n 19 $(MAKE) torture SEEDS=$(FRESH_SEEDS) SEED=$$(date +%s)
	FUZZING=$(OUT)/fuzzing nice -n 19 $(MAKE) fuzz SECONDS=20

fmt: ## format the sources
	cargo fmt --all

fmt-check:
	cargo fmt --all --check

commit-check: ## the messages of the last commits
	@$(PYTHON) tests/commit-check

lint: ## clippy, warnings are errors; whether the mends that `make mutations` takes out are there, nothing is used in circles, and the fuzz targets build
	@$(PYTHON) tests/mutations --check
	@$(PYTHON) tests/rooms
	cargo clippy --profile ci $(ALL) -- -D warnings
	$(FUZZ_CHECK)

unit: ## unit, property and conformance tests
	cargo test --profile ci --workspace

torture: deps ## the engine under simulation (SEEDS=n SEED=first)
	$(CARGO) build --profile $(PROFILE) $(or $(SCOPE),-p torture)
	$(OUT)/torture --seeds $(SEEDS) --seed $(SEED) $(if $(AIM),--aim $(AIM))

clients: deps-test ## real clients against the real binary (ONLY="fio guest", ONLY="--cache off")
	$(CARGO) build --profile $(PROFILE) $(or $(SCOPE),-p forebay)
	$(PYTHON) tests/run --bin $(BIN) $(ONLY)

crash: deps-test ## power cuts of the real binary (N=images, SEED=first, CRASH="--fault unreadable")
	$(CARGO) build --profile $(PROFILE) $(or $(SCOPE),-p forebay)
	$(PYTHON) tests/crash --bin $(BIN) --images $(N) --seed $(if $(filter command% environment%,$(origin SEED)),$(SEED),$(shell date +%s)) $(CRASH)

fuzz: deps ## every decoder under libFuzzer for some seconds each (SECONDS=60)
	fuzz/run $(SECONDS)

deny: ## licences, sources and duplicates of all libraries, and advisories where there is a network (needs cargo-deny)
	cargo deny --offline check licenses bans sources
	cargo deny check advisories

mutations: deps ## which seed of torture finds each mend that is taken out (SEEDS=n SEED=first)
	$(PYTHON) tests/mutations --seeds $(SEEDS) --seed $(SEED)

bench: deps-bench ## compare with nbdkit and qemu-nbd (BENCH="--seconds 2 --rounds 1")
	$(CARGO) build --profile $(PROFILE) -p forebay
	$(PYTHON) bench/run --bin $(BIN) $(BENCH)

bench-cache: deps-bench ## the cache beside its peers and the bare device (BENCH="--seconds 2 --rounds 1 --steady 60")
	$(CARGO) build --profile $(PROFILE) -p forebay
	$(PYTHON) bench/cache.py --bin $(BIN) $(BENCH)

experiments: deps ## published experiments again, in virtual time: docs/experiments.md (ARGS=--check, ARGS="--only 3")
	packaging/flags cargo run --release -p experiments -- $(ARGS)

deps: ## what a build needs, installed if missing
	@tests/deps build

deps-test: ## what the tests need, installed if missing
	@tests/deps test

deps-bench:
	@tests/deps bench
