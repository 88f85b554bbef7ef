# kvtier: every target makes the environment that it needs. `make help` lists them.

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
endif
ifeq ($(strip $(PYTHON)),)
PYTHON = $(error kvtier needs Python 3.11 or newer with its venv module: install python3 and python3-venv)
endif

PY := .venv/bin/python
# Optimised like a release, but quicker to build (Cargo.toml).
PROFILE ?= develop
# Tests of one file share fixtures and stay on one worker.
PYTEST := $(PY) -m pytest --numprocesses auto --dist loadfile
CARGO_TEST := $(if $(shell command -v cargo-nextest),nextest run --no-tests warn,test)
RUN_IGNORED := $(if $(shell command -v cargo-nextest),--run-ignored all,-- --include-ignored)
SOURCES = $(shell find rust -path rust/kvtier/fuzz -prune -o -name '*.rs' -print) rust/kvtier/Cargo.toml \
	rust/kvtier-py/Cargo.toml Cargo.toml Cargo.lock pyproject.toml

.DEFAULT_GOAL := help
# The environment stands before what is built into it; cargo and pytest use the cores by themselves.
.NOTPARALLEL:
.PHONY: help demo demo-s3 test test-fast test-matrix sanitize bench bench-s3 bench-scale bench-vllm lint format build wheel clean demo-env \
	test-env matrix-env

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: demo-env .venv/built-$(PROFILE) ## what TP=2 wrote, TP=4 hits: a few processes share blocks (needs no torch)
	.venv/bin/kvtier demo $(ARGS)

demo-s3: test-env .venv/built-$(PROFILE) ## the same in a bucket of a real S3 server, started for it
	$(PY) scripts/s3_server.py .venv/bin/kvtier demo --root s3://bucket/demo $(ARGS)

test: test-env .venv/built-$(PROFILE) ## all tests: Rust, doc tests, Python; ends with what was skipped and why
	cargo $(CARGO_TEST) --locked -p kvtier --lib --tests $(RUN_IGNORED)
	KVTIER_TEST_IO_ENGINE=uring cargo $(CARGO_TEST) --locked -p kvtier --test files_races --test files_processes \
		--test packed --test packed_pins --test packed_processes $(RUN_IGNORED)
	cargo test --locked -p kvtier --doc --quiet
	$(PYTEST) $(ARGS)

test-fast: test-env .venv/built-$(PROFILE) ## the tests that take seconds: under 3 minutes once built
	cargo $(CARGO_TEST) --locked -p kvtier --lib --tests
	$(PYTEST) -m "not slow" $(ARGS)

test-matrix: matrix-env .venv/built-$(PROFILE) ## the tests of the tier for vLLM, on the other vLLM that it works with
	PYTHONPATH=.venv/matrix $(PYTEST) -m "not engine" tests/integrations $(ARGS)

bench: test-env .venv/built-release ## benchmarks: criterion for the core, then kvtier beside plain baselines
	cargo bench --locked -p kvtier
	$(PY) benches/vs_peer.py $(ARGS)

bench-s3: test-env .venv/built-release ## kvtier in a bucket beside obstore, on an S3 server that it starts
	PYTHONPATH=scripts $(PY) benches/vs_obstore.py $(ARGS)

# Tables of a million blocks, and a page of the disk for each of a fifth of them: 1.2 GiB of `target`, removed at the end.
bench-scale: export KVTIER_TEST_BLOCKS ?= 1000000
bench-scale: test-env .venv/built-release ## packed pools of a million blocks: opening, lookups, tables rebuilt
	cargo test --locked --release -p kvtier --test packed_scale -- --nocapture --test-threads 1
	pool=$$(mktemp -d target/tmp/scale-XXXXXX) && trap 'rm -rf "$$pool"' EXIT && \
	KVTIER_TEST_POOL=$$PWD/$$pool cargo test --locked --release --quiet -p kvtier --test packed_scale another_program && \
	$(PY) benches/pool_scale.py --pool $$pool $(ARGS)

bench-vllm: test-env .venv/built-release ## kvtier's tier for vLLM beside vLLM's own, on files and on an S3 server
	$(PY) scripts/s3_server.py $(PY) benches/vs_vllm.py --objects s3://bucket/bench $(ARGS)

lint: test-env .venv/built-$(PROFILE) ## formatting, clippy, rustdoc, ruff, mypy, stubtest
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --quiet -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" cargo doc --locked --workspace --no-deps --document-private-items --quiet
	.venv/bin/ruff check --quiet
	.venv/bin/ruff format --check --quiet
	$(PY) -m mypy
	$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml --allowlist tests/stubtest-allowlist.txt \
		--ignore-unused-allowlist kvtier._kvtier

# A ring that fails keeps its memory for ever, on purpose, so its test is left out.
sanitize: ## the core's tests of memory, IO, stores and engine under AddressSanitizer; a long build of its own
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/sanitize cargo test --locked -p kvtier --lib \
		--target $(shell rustc -vV | sed -n 's/^host: //p') -- buffer:: io:: store:: engine:: --skip threads_take_over

format: test-env ## rewrite the sources the way that lint wants them
	cargo fmt --all
	.venv/bin/ruff check --quiet --fix
	.venv/bin/ruff format --quiet

build: test-env .venv/built-$(PROFILE) ## kvtier into .venv (PROFILE=release for figures)

wheel: test-env ## a release wheel into dist/
	.venv/bin/maturin build --release --out dist --interpreter $(PY)

clean: ## remove what was built here; the shared environments in the user's cache stay
	cargo clean
	rm -rf .venv dist python/kvtier/_kvtier*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis

demo-env test-env matrix-env: %-env:
	@$(PYTHON) scripts/dev_env.py $*

.venv/built-%: $(SOURCES)
	@rm -f .venv/built-*
	@PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/.venv .venv/bin/maturin develop --profile $* --quiet
	@touch $@
