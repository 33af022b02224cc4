# Every check and every main job, each from a fresh clone: see `make help`.

# The interpreters. PYTHON makes .venv, PYTHON_NEWER .venv-newer; PYTHON_GPU is
# used as it is, with the CUDA build of JAX that its machine has.
PYTHON ?= python3.11
PYTHON_NEWER ?= python3.12
PYTHON_NEWEST ?= python3.13
PYTHON_GPU ?= python3

# ARGS is passed on: make compare ARGS="--format=json", make test ARGS="-k epilogue".
ARGS ?=
# Test processes side by side; "auto" is one for each core.
PYTEST_WORKERS ?= auto
# A file goes to one process: its tests share fixtures and what JAX compiled.
PYTEST_SPREAD = -n $(PYTEST_WORKERS) --dist=loadfile

VENV = .venv
VENV_NEWER = .venv-newer
VENV_ASCEND = .venv-ascend
PINS_NEWER = requirements/py312.txt
STAMP = $(VENV)/.installed
STAMP_NEWER = $(VENV_NEWER)/.installed
STAMP_ASCEND = $(VENV_ASCEND)/.installed
BIN = $(VENV)/bin
BIN_NEWER = $(VENV_NEWER)/bin
BIN_ASCEND = $(VENV_ASCEND)/bin

# NumPy and plain Python only: a minute, so they run before what needs JAX.
FAST_TESTS = tests/reference tests/hw_profiles tests/worked_values
NOT_FAST = $(FAST_TESTS:%=--ignore=%)
PYTEST_FLAGS = -q -m "not gpu" $(ARGS)

# Non-empty: tests of Huawei's compilers that cannot be run are an error, not left out.
ASCEND_REQUIRED ?=

.DEFAULT_GOAL = help
.PHONY: help venv venv-newer compare test format-check lint types unit format \
	test-ascend unit-ascend porting test-newer test-newest gpu-check gpu-test gpu-bench gpu-bench-gemm \
	gpu-bench-rows gpu-bench-attention clean

help: ## This list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' Makefile
	@echo
	@echo '  ARGS="..." is passed on to the program: make compare ARGS="--format=json"'
	@echo '  PYTHON=python3.x makes the environment from another interpreter (3.11 or later).'

# --- environments -------------------------------------------------------------

venv: $(STAMP) ## Make .venv from the pinned versions; nothing to do where it is up to date.

venv-newer: $(STAMP_NEWER) ## The same for Python 3.12 and a later JAX, in .venv-newer.

# $(call install,interpreter,folder,pins): an environment with exactly the pinned
# versions, and the project in it, editable. The folder is emptied first, so that
# what an older pin brought does not stay. --no-build-isolation: the build uses
# the pinned setuptools and fetches nothing.
define install
	echo "venv: making $(2) with $$($(1) --version), versions from $(3)"; \
	$(1) -m venv --clear $(2) && \
	echo "venv: installing the pinned packages (the first time downloads about 200 MB)" && \
	$(2)/bin/python -m pip install --quiet --disable-pip-version-check -r $(3) && \
	$(2)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable . && \
	touch $(2)/.installed && \
	echo "venv: $(2) is ready"
endef

$(STAMP): requirements/py311.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null || { \
	  echo "venv: PYTHON=$(PYTHON) is missing or older than Python 3.11." >&2; \
	  echo "venv: install Python 3.11, or name an interpreter: make venv PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(call install,$(PYTHON),$(VENV),requirements/py311.txt)

# PYTHON_NEWER if it runs, else one of that name that pyenv has installed without
# putting it on PATH, else nothing.
find_newer = if $(PYTHON_NEWER) -c '' 2>/dev/null; then echo "$(PYTHON_NEWER)"; \
	elif command -v pyenv >/dev/null 2>&1; then \
	  ls -d "$$(pyenv root)"/versions/*/bin/$(PYTHON_NEWER) 2>/dev/null | tail -n 1; fi

$(STAMP_NEWER): $(PINS_NEWER) pyproject.toml
	@newer=$$($(find_newer)); if [ -z "$$newer" ]; then \
	  echo "venv: PYTHON_NEWER=$(PYTHON_NEWER) is missing" >&2; exit 1; fi; \
	$(call install,$$newer,$(VENV_NEWER),$(PINS_NEWER))

# Huawei's compilers: a package of theirs takes the place of triton, so they have
# an environment of their own, with the tests' pins.
$(STAMP_ASCEND): requirements/py311.txt requirements/ascend.txt pyproject.toml
	@$(call install,$(PYTHON),$(VENV_ASCEND),requirements/py311.txt -r requirements/ascend.txt)

# Why they cannot be here; nothing where they can.
ascend_refusal = $(PYTHON) -c 'import platform, sys; \
	print("" if sys.version_info[:2] == (3, 11) else "it needs Python 3.11 and PYTHON=$(PYTHON) is " + platform.python_version()) \
	if sys.platform == "linux" and platform.machine() == "x86_64" else \
	print("it is for Linux on x86-64, and this is", sys.platform, platform.machine())' \
	2>/dev/null || echo "PYTHON=$(PYTHON) is missing"

# --- the main job -------------------------------------------------------------

compare: $(STAMP) ## Run, check and price the default matmul on every default profile.
	@$(BIN)/python -m pallas_kernels.benchmark --task=compare $(ARGS)

# --- checks -------------------------------------------------------------------

test: format-check lint types unit test-ascend ## Everything that must pass: format, lint, types, tests.

format-check: $(STAMP) ## Is every file formatted?
	$(BIN)/ruff format --check .

lint: $(STAMP) ## ruff's rules.
	$(BIN)/ruff check .

types: $(STAMP) ## mypy over the three packages.
	$(BIN)/mypy

unit: $(STAMP) ## The tests, those that need no JAX first.
	$(BIN)/python -m pytest $(PYTEST_FLAGS) $(PYTEST_SPREAD) $(FAST_TESTS)
	$(BIN)/python -m pytest $(PYTEST_FLAGS) $(PYTEST_SPREAD) tests $(NOT_FAST)

# The rest of tests/ascend needs no compiler and is among `unit`. Exit status 5: no
# test is what ARGS asks for.
test-ascend: ## The tests that need Huawei's compilers; says in a line why where they cannot be installed.
	@refusal=$$($(ascend_refusal)); \
	if [ -z "$$refusal" ] && ! $(MAKE) --no-print-directory $(STAMP_ASCEND); then \
	  refusal="its packages (requirements/ascend.txt) did not install"; fi; \
	if [ -z "$$refusal" ]; then $(MAKE) --no-print-directory unit-ascend; \
	elif [ -n "$(ASCEND_REQUIRED)" ]; then echo "test-ascend: $$refusal" >&2; exit 1; \
	else echo "test-ascend: left out: $$refusal"; fi

unit-ascend: $(STAMP_ASCEND)
	$(BIN_ASCEND)/python -m pytest -q -m "compilers and not gpu" $(ARGS) -n $(PYTEST_WORKERS) tests/ascend \
	  || [ $$? -eq 5 ]

# The problems whose porting reports are in docs/.
PORT = $(BIN_ASCEND)/python -m pallas_kernels.benchmark --task=port --format=markdown

porting: $(STAMP_ASCEND) ## Write docs/porting-*.md anew: the porting reports, with Huawei's compilers.
	$(PORT) --kernel=matmul --output=docs/porting-matmul.md
	$(PORT) --kernel=flash_attention --output=docs/porting-attention.md \
	  --shape=batch=1,seq_q=8192,seq_kv=8192,heads=32,kv_heads=8

format: $(STAMP) ## Format every file, and apply the lint fixes that are safe.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-newer: ## The tests on Python 3.12 and a later JAX; skipped where there is no Python 3.12.
	@newer=$$($(find_newer)); if [ -z "$$newer" ]; then \
	  echo "test-newer: skipped, PYTHON_NEWER=$(PYTHON_NEWER) is missing"; \
	else $(MAKE) --no-print-directory unit-newer; fi

# the same leg with another interpreter, environment and pins
test-newest: ## The tests on Python 3.13 and the newest JAX; skipped where there is no Python 3.13.
	@$(MAKE) --no-print-directory test-newer PYTHON_NEWER=$(PYTHON_NEWEST) \
	  VENV_NEWER=.venv-newest PINS_NEWER=requirements/py313.txt

.PHONY: unit-newer
unit-newer: $(STAMP_NEWER)
	$(BIN_NEWER)/python -m pytest $(PYTEST_FLAGS) $(PYTEST_SPREAD) tests

# --- on a machine with an NVIDIA GPU -------------------------------------------

gpu-check:
	@PYTHONPATH=. $(PYTHON_GPU) -c 'import jax; assert jax.default_backend() == "gpu"' 2>/dev/null || { \
	  echo "gpu: PYTHON_GPU=$(PYTHON_GPU) has no JAX that sees a GPU." >&2; \
	  echo "gpu: install one (pip install \"jax[cuda13]>=0.10.2\"), or name the interpreter that has it:" >&2; \
	  echo "gpu:   make gpu-test PYTHON_GPU=path/to/python" >&2; \
	  exit 1; }

gpu-test: gpu-check ## The tests that need a GPU, with the interpreter in PYTHON_GPU.
	PYTHONPATH=. $(PYTHON_GPU) -m pytest -q -m gpu $(ARGS) tests

# The sizes that the GEMM family is measured at: few rows (with cold L2), then many.
BENCH_FEW = m=1,k=4096,n=12288 m=16,k=4096,n=12288 m=64,k=4096,n=12288
# C of few tiles and a long K, which is split.
BENCH_DEEP = m=1,k=12288,n=4096 m=64,k=12288,n=4096
BENCH_GATED = m=256,k=4096,n=12288 m=1024,k=4096,n=12288 m=2048,k=4096,n=12288 \
	m=7239,k=4096,n=12288 m=4096,k=4096,n=4096
BENCH_MATMUL = $(BENCH_GATED) m=1536,k=4096,n=12288 m=7239,k=12288,n=4096 m=8192,k=8192,n=8192 \
	m=256,k=12288,n=4096 m=333,k=4096,n=12289 m=113,k=1023,n=203
# What an epilogue costs is over the plain product of the same process.
BENCH_EPILOGUE = m=1024,k=4096,n=12288 m=4096,k=4096,n=12288
# The steps of training: forward and gradients.
BENCH_BACKWARD = m=1024,k=4096,n=12288 m=2048,k=4096,n=12288 m=7239,k=4096,n=12288 m=4096,k=4096,n=4096
BENCH_INVARIANT = $(BENCH_FEW) m=256,k=4096,n=12288 m=7239,k=4096,n=12288
BENCH_QUANTIZED = m=1024,k=4096,n=12288 m=8192,k=8192,n=8192
# Ends in the peers, so that a line can add some.
BENCH = PYTHONPATH=. $(PYTHON_GPU) -m pallas_kernels.benchmark --task=run --results=$(RESULTS) $(ARGS) \
	--peers=xla
# Where the measured times are kept; docs/results names the files by GPU and family.
RESULTS ?= docs/results/h200-gemm.json

# The ladder always checks its steps; docs/gemm-ladder.md is written from what RESULTS then holds.
gpu-bench: gpu-bench-gemm gpu-bench-rows gpu-bench-attention ## Everything measured on a GPU, with peers beside it; kept in docs/results.

gpu-bench-gemm: gpu-check ## The main job and the GEMM family on a GPU; kept in RESULTS.
	PYTHONPATH=. $(PYTHON_GPU) -m pallas_kernels.benchmark --task=compare $(ARGS)
	$(BENCH),stream --planned --cold_l2 --kernel=matmul $(BENCH_FEW:%=--shape=%) $(BENCH_DEEP:%=--shape=%)
	$(BENCH),jax_mgpu --planned --kernel=matmul $(BENCH_MATMUL:%=--shape=%)
	$(BENCH),plain --kernel=matmul --bias $(BENCH_EPILOGUE:%=--shape=%)
	$(BENCH),plain --kernel=matmul --activation=silu $(BENCH_EPILOGUE:%=--shape=%)
	$(BENCH),plain --kernel=matmul --batch_invariant $(BENCH_INVARIANT:%=--shape=%)
	$(BENCH) --cold_l2 --kernel=gated_matmul $(BENCH_FEW:%=--shape=%)
	$(BENCH) --planned --kernel=gated_matmul $(BENCH_GATED:%=--shape=%)
	$(BENCH) --kernel=matmul,gated_matmul --backward --check=none $(BENCH_BACKWARD:%=--shape=%)
	$(BENCH) --kernel=quantized_matmul --dtype=float8_e4m3fn,int8 $(BENCH_QUANTIZED:%=--shape=%)
	$(BENCH) --kernel=quantize_matmul --check=none $(BENCH_QUANTIZED:%=--shape=%)
	$(BENCH) --kernel=quantize_matmul --check=none --fuse=yes --shape=m=1024,k=4096,n=12288
	PYTHONPATH=. $(PYTHON_GPU) -m pallas_kernels.benchmark --task=ladder --results=$(RESULTS) \
	  $(filter-out --check=%,$(ARGS))

# The row-wise family: rows of a decode step, of a prompt and of many, at the widths of models; with
# cold L2 from about 50 MB on, as such operands do not come from L2 in use, and beside a stream.
BENCH_WIDTHS = 4096 12288 11008 111 5000
# $(call rows_by,rows,widths): a --shape for each of both.
rows_by = $(foreach width,$(2),$(foreach rows,$(1),--shape=rows=$(rows),columns=$(width)))
BENCH_ROWS_WARM = $(call rows_by,1 8 64,$(BENCH_WIDTHS)) $(call rows_by,1024,4096 111 5000) \
	$(call rows_by,7239 65536,111)
BENCH_ROWS_COLD = $(call rows_by,1024,12288 11008) \
	$(call rows_by,7239 65536,4096 12288 11008 5000)
ROWS_RESULTS ?= docs/results/h200-rowwise.json
ROWS_BENCH = PYTHONPATH=. $(PYTHON_GPU) -m pallas_kernels.benchmark --task=run \
	--results=$(ROWS_RESULTS) $(ARGS) --peers=xla
ROW_OPS = swiglu,swiglu_quantize,quantize_rows,rms_norm,transpose
# $(call rows_bench,options,widths): all rows of an op with options.
define rows_bench
	$(ROWS_BENCH) $(1) $(call rows_by,1 8 64,$(2))
	$(ROWS_BENCH),stream --cold_l2 $(1) $(call rows_by,1024 7239 65536,$(2))
endef

# The study always checks its programs; docs/fusion-study.md is written from what ROWS_RESULTS then holds.
gpu-bench-rows: gpu-check ## The row-wise ops and the fusion study on a GPU; kept in ROWS_RESULTS.
	$(ROWS_BENCH),stream --cold_l2 --kernel=$(ROW_OPS) $(BENCH_ROWS_COLD)
	$(ROWS_BENCH) --kernel=$(ROW_OPS) $(BENCH_ROWS_WARM)
	$(ROWS_BENCH),stream --cold_l2 --kernel=swiglu,rms_norm --backward $(BENCH_ROWS_COLD)
	$(ROWS_BENCH) --kernel=swiglu,rms_norm --backward $(BENCH_ROWS_WARM)
	$(call rows_bench,--kernel=rms_norm --residual,4096)
	$(call rows_bench,--kernel=rms_norm --quantize_dtype=float8_e4m3fn,4096)
	$(call rows_bench,--kernel=swiglu_quantize --scale=0.02,12288)
	PYTHONPATH=. $(PYTHON_GPU) -m pallas_kernels.benchmark --task=fusion --cold_l2 --results=$(ROWS_RESULTS) \
	  $(filter-out --check=%,$(ARGS))

# Attention as FlashAttention's tables have it, with a grouped one, a ragged one and a single head;
# decoding from one and from many caches, with warm and with cold L2.
BENCH_ATTENTION = batch=8,seq_q=2048,seq_kv=2048,heads=16 batch=4,seq_q=4096,seq_kv=4096,heads=16 \
	batch=2,seq_q=8192,seq_kv=8192,heads=16 batch=1,seq_q=16384,seq_kv=16384,heads=16 \
	batch=2,seq_q=8192,seq_kv=8192,heads=32,head_dim=64 \
	batch=2,seq_q=8192,seq_kv=8192,heads=32,kv_heads=8 \
	batch=1,seq_q=7239,seq_kv=7239,heads=32,kv_heads=8 $(BENCH_ONE_HEAD)
BENCH_FULL = batch=2,seq_q=8192,seq_kv=8192,heads=16
BENCH_ONE_HEAD = batch=1,seq_q=8192,seq_kv=8192,heads=1
# Keys of a step of the portable kernel; a tensor core's product has 16 at least.
BENCH_BLOCK_KV = 16 64 128
BENCH_DECODE = batch=1,seq_kv=8192 batch=64,seq_kv=8192 batch=1,seq_kv=131072
ATTENTION_RESULTS ?= docs/results/h200-attention.json
ATTENTION_RUN = PYTHONPATH=. $(PYTHON_GPU) -m pallas_kernels.benchmark --task=run --results=$(ATTENTION_RESULTS)
# What people would use; one that is not installed has a row with its reason. The unfused program is beside
# them where memory is measured: at the other sizes its scores take up to 17 GB.
ATTENTION_BENCH = $(ATTENTION_RUN) --peers=cudnn,fa3,tokamax $(ARGS)
ATTENTION_MEMORY = $(ATTENTION_RUN) --peers=xla,cudnn,fa3,tokamax --memory $(ARGS)

gpu-bench-attention: gpu-check ## Attention, its gradients and decoding on a GPU; kept in ATTENTION_RESULTS.
	$(ATTENTION_BENCH) --kernel=flash_attention --causal $(BENCH_ATTENTION:%=--shape=%)
	$(ATTENTION_BENCH) --kernel=flash_attention --shape=$(BENCH_FULL)
	$(ATTENTION_BENCH) --kernel=flash_attention --causal --backward $(BENCH_ATTENTION:%=--shape=%)
	$(ATTENTION_BENCH) --kernel=flash_attention --backward --shape=$(BENCH_FULL)
	$(ATTENTION_BENCH) --kernel=decode_attention $(BENCH_DECODE:%=--shape=%,heads=32,kv_heads=8)
	$(ATTENTION_BENCH) --cold_l2 --kernel=decode_attention $(BENCH_DECODE:%=--shape=%,heads=32,kv_heads=8)
	$(ATTENTION_MEMORY) --kernel=flash_attention --causal --shape=$(BENCH_ONE_HEAD)
	$(ATTENTION_MEMORY) --kernel=flash_attention --causal --backward --shape=$(BENCH_ONE_HEAD)
	$(ATTENTION_RUN) $(ARGS) --implementation=triton --kernel=flash_attention --causal --shape=$(BENCH_ONE_HEAD) \
	  $(BENCH_BLOCK_KV:%=--tile=block_q=64,block_kv=%,num_stages=2,num_warps=4)

clean: ## Remove the environments, caches and build products.
	rm -rf .venv .venv-newer .venv-newest .venv-ascend build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
