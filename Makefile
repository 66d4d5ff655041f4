# Violet. Two commands do everything: `make run` and `make test`. `make help` lists the rest.

NODES   ?= 15
SECONDS ?= 5
PORT    ?= 4410
TEST_PORT ?= 24410
ENDURE_PORT ?= 25410
SCENARIO ?= restart-empty
FLAME_PORT ?= 26410
PLAN_PORT ?= 27410
PLAN    ?= smoke
FLAME_SECONDS ?= 3
DIR     ?= .violet
SEEDS   ?= 2000
SWARM_SEEDS ?= 20000
CELLS   ?= S1,S16,S32,R1,R16,R32,R64,R128,R256

CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
BIN    := $(TARGET)/release
VIOLET := $(BIN)/violet
TEST   := $(BIN)/violet-testclient
TESTBED := $(BIN)/violet-testbed
ENDURE = $(TEST) endure --violet $(VIOLET) --port $(ENDURE_PORT) --dir $(DIR)/endure $(ENDURE_OPTIONS)
INSTRUCTIONS = $(CARGO) bench --package violet --locked --bench instructions
BENCH = $(TEST) bench --violet $(VIOLET) --dir $(DIR)/bench --json $(DIR)/bench.json --markdown $(DIR)/bench.md $(BENCH_OPTIONS)
FLAME_RUN = --port $(FLAME_PORT) --dir $(DIR)/flame $(FLAME_OPTIONS)
FLAME_HOW = --violet $(VIOLET) --seconds $(FLAME_SECONDS) $(FLAME_RUN)
CLUSTER = $(VIOLET) cluster --nodes $(NODES) --port $(PORT) --dir $(DIR)

.DEFAULT_GOAL := help
.PHONY: run test cluster check grid faults capacity overload bench bench-quick plan testbed testbed-build generator endure endure-all endure-list sim swarm instructions \
  lookups flamegraph flamegraph-all flamegraph-diff flamegraph-index flamegraph-list flamegraph-check build fmt lint help clean

run: build ## Build, start NODES nodes, run conformance check and the S/R grid (SECONDS a cell), report, stop
	$(CLUSTER) -- sh -c '$(TEST) check --json $(DIR)/check.json; checked=$$?; \
	  $(TEST) grid --seconds $(SECONDS) --cells $(CELLS) --json $(DIR)/grid.json && exit $$checked'

test: lint ## Everything that CI runs: format, lints, unit tests, simulation, real processes
	$(CARGO) test --workspace --locked
	$(CARGO) build --workspace --locked
	$(TARGET)/debug/violet cluster --nodes 5 --port $(TEST_PORT) --dir $(DIR)/test -- \
	  $(TARGET)/debug/violet-testclient check --suspend --destructive --kill-mode kill9 --capacity-mib 600
	$(TARGET)/debug/violet-testclient endure mass-restart --violet $(TARGET)/debug/violet --port $(ENDURE_PORT) \
	  --dir $(DIR)/test/endure --nodes 5 --rounds 4
	$(TARGET)/debug/violet-testclient run smoke --violet $(TARGET)/debug/violet --port $(PLAN_PORT) --dir $(DIR)/test/plan
	$(MAKE) --no-print-directory instructions
	$(TARGET)/debug/violet-testclient flame check --violet $(TARGET)/debug/violet --seconds 4 $(FLAME_RUN)
	$(TARGET)/debug/violet-testclient flame check --violet $(TARGET)/debug/violet --seconds 4 $(FLAME_RUN) --planted

cluster: build ## Start NODES nodes on PORT… and keep them until Ctrl-C
	$(CLUSTER)

check: build ## Only the conformance check
	$(CLUSTER) -- $(TEST) check

grid: build ## Only the S/R grid
	$(CLUSTER) -- $(TEST) grid --seconds $(SECONDS) --cells $(CELLS)

faults: build ## kill -9, SHUTDOWN and a 60 s suspension of two nodes under load
	$(CLUSTER) -- $(TEST) check --stages crash --destructive --kill-mode kill9
	$(CLUSTER) -- $(TEST) check --stages crash --destructive --kill-mode shutdown
	$(CLUSTER) -- $(TEST) check --stages suspend --suspend --suspend-seconds 60

capacity: build ## One node with 64 MiB: filled to "out of space" and back
	$(VIOLET) cluster --nodes 1 --port $(PORT) --dir $(DIR) --set memory-mib=64 -- \
	  $(TEST) check --stages capacity --destructive

overload: build ## Four times the clients that saturate the cluster
	$(CLUSTER) -- $(TEST) grid --overload --seconds $(SECONDS)

endure: build ## One fault scenario, SCENARIO=name: nodes killed, stopped, added, cut off under load
	$(ENDURE) $(SCENARIO)

endure-all: build ## All fault scenarios, one after the other: 10 to 30 minutes; figures in DIR/endure.json
	$(ENDURE) --allow-skip --json $(DIR)/endure.json all

endure-list: build ## What the scenarios are
	$(TEST) endure --list

bench: build ## Ratios against an echo server, memcached and Redis: 20 minutes on an otherwise idle machine; tables in DIR/bench.md
	$(BENCH)

bench-quick: build ## The same in 3 minutes, too short to decide anything close
	$(BENCH) --quick

plan: build ## A plan with nodes of its own, PLAN=name or file; result and page in DIR/plan.{json,html}; PLAN_OPTIONS=--list: what there is
	$(TEST) run $(PLAN) --violet $(VIOLET) --port $(PLAN_PORT) --dir $(DIR)/plan --json $(DIR)/plan.json --html $(DIR)/plan.html $(PLAN_OPTIONS)

testbed: testbed-build ## The wide-area testbed as a whole: NODES emulated hosts with sshd, deployed, loaded, cut, healed; needs root and openssh-server
	$(TESTBED) trial --binaries $(BIN) --dir $(DIR)/testbed --nodes $(NODES) $(TESTBED_OPTIONS)

testbed-build: build ## violet-testbed in target/release
	$(CARGO) build --release --locked --package violet-testbed

generator: build ## The load engine's rate on one processor, beside the bare generator of the benchmark; needs a quiet machine
	$(TEST) generator

sim: build ## Simulate SEEDS seeds
	$(VIOLET) sim --seeds $(SEEDS)

swarm: build ## Simulate SWARM_SEEDS seeds of clusters of 5 to 30 nodes in which everything goes wrong: 45 minutes of one core
	$(VIOLET) sim --seeds $(SWARM_SEEDS) --mood everything --nodes 5-30

instructions: ## Count instructions per request and compare with tests/instructions.txt (UPDATE_EXPECT=1 writes it); needs valgrind
	@if command -v valgrind >/dev/null; then $(INSTRUCTIONS); else echo 'instructions: skipped, because there is no valgrind'; fi

lookups: ## How many preference lists one core looks up in a second
	$(INSTRUCTIONS) -- --lookups
flamegraph: build ## EPISODE=n: both sides of an episode and what changed; CONFIG=name [NAME=x]: one configuration
	$(TEST) flame take $(if $(EPISODE),--episode $(EPISODE)) $(if $(CONFIG),--config $(CONFIG)) $(if $(NAME),--name $(NAME)) $(FLAME_HOW)

flamegraph-all: build ## All episodes and the page: 11 x 2 x 5 runs of about 4 + FLAME_SECONDS seconds
	$(TEST) flame all $(FLAME_HOW)

flamegraph-diff: build ## A=name B=name: compare two profiles, as pictures and tables
	$(TEST) flame diff --before "$(A)" --after "$(B)"

flamegraph-index: build ## Write flamegraphs/index.html from the folders that are there
	$(TEST) flame index

flamegraph-list: build ## What episodes and configurations there are
	$(TEST) flame list

flamegraph-check: build ## Fail if the hot path shows socket set-up, formatting or allocation
	$(TEST) flame check $(FLAME_HOW)

build: ## Release binaries in target/release
	$(CARGO) build --release --locked

fmt: ## Format the code
	$(CARGO) fmt --all

lint: ## Format check and clippy, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

clean: ## Remove what was built and what clusters left in DIR
	$(CARGO) clean
	rm -rf $(DIR)

help: ## This list
	@echo 'make TARGET [NODES=$(NODES)] [SECONDS=$(SECONDS)] [PORT=$(PORT)] [DIR=$(DIR)]'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 16
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 20
