# Every command of the project. Each target first makes .venv and builds hps._C where needed.
SHELL := /bin/bash
.DEFAULT_GOAL := build
PYTHON := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Byte code is left to the first import: where the shell has none written, every process of a test
# would compile torch anew, which takes it longer than all else.
export PYTHONDONTWRITEBYTECODE :=
JOBS ?= $(shell nproc)
NATIVE_FILES = $(shell find csrc tests/native -name '*.cc' -o -name '*.h' 2> /dev/null)

.PHONY: build demo test chromium torture check proto pages wheel wheel-test format bench gpu native
.PHONY: asan tsan clean container-lint docs docs-check promtool dashboard-picture

build:
	@tools/bootstrap.sh

demo: build ## Generate a log, train on it with most rows on SSD, evaluate, look into the store.
	@tools/demo.sh

test: build native ## Native tests, then Python tests, a file at a time on each core.
	@tools/chromium.sh --try
	@tools/promtool.sh --try
	$(PYTHON) -m pytest -n $(JOBS) --dist loadfile

chromium: ## Chromium, in which tests open pages of hps, with apt-get.
	@tools/chromium.sh

promtool: ## build/promtool, which looks at deploy/prometheus/, of Debian's package.
	@tools/promtool.sh

dashboard-picture: build ## docs/dashboard.png, of all that runs, in Chromium.
	$(PYTHON) -m tools.dashboard_picture docs/dashboard.png

torture: native ## The fault recipes of docs/reliability.md at full count, with a summary.
	$(PYTHON) -m tests.torture.run --native "$$($(PYTHON) tools/build_dir.py)"

check: build ## Lint, format, types.
	ruff check .
	ruff format --check .
	mypy
	clang-format --dry-run -Werror $(NATIVE_FILES)

proto: build ## Generate hps/v1 from proto/.
	tools/proto.sh

pages: build ## Man pages and the shells' completions, of the parsers: man/, completions/.
	$(PYTHON) -m tools.shell_pages

docs: build ## The documentation site: build/site/, with warnings as errors.
	@tools/site/build.sh

docs-check: docs ## The built site in a browser: links, accessibility, a phone's width.
	@tools/chromium.sh
	@tools/site/axe.sh
	$(PYTHON) -m pytest -m docs tests/site

wheel: build ## dist/: the sdist, and a manylinux wheel for each Python from 3.11 on that is found.
	@tools/wheels.sh

wheel-test: wheel ## Installs each wheel in an environment without a compiler, trains and reads.
	$(PYTHON) -m pytest -m wheel tests/packages

container-lint: build ## hadolint over deploy/Containerfile.
	@tools/hadolint.sh

format: build
	ruff check --fix .
	ruff format .
	clang-format -i $(NATIVE_FILES)

bench: build ## All benchmarks, as benchmarks/results/ was made.
	mkdir -p out
	$(PYTHON) -m benchmarks.run all --json out/bench.json

gpu: ## On a machine with a GPU: build, tests, steps, verbs, sanitizers; results in $OUT or out/.
	@tools/gpu.sh

# The module's own build folder, so that the core is compiled once.
native: build
	cmake -S . -B "$$($(PYTHON) tools/build_dir.py)" -DHPS_TESTS=ON > /dev/null
	cmake --build "$$($(PYTHON) tools/build_dir.py)" -j $(JOBS)
	ctest --test-dir "$$($(PYTHON) tools/build_dir.py)" --no-tests=ignore --output-on-failure

asan: build
	$(call sanitize,address)

tsan: build
	$(call sanitize,thread)

define sanitize
cmake -S . -B build/$(1) -G Ninja -DHPS_SANITIZE=$(1) -DHPS_TESTS=ON -DHPS_MODULE=OFF \
  -DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_CXX_FLAGS_SANITIZE="-O1 -g" > /dev/null
cmake --build build/$(1) -j $(JOBS)
ctest --test-dir build/$(1) --no-tests=error --output-on-failure
endef

clean:
	rm -rf .venv build dist out demo man completions *.egg-info hps/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache
