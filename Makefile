# The fm suite.  Targets:
#
#   all        the tools and libfm_clip.so, in build/; prints the apt command if packages are missing
#   deps       installs missing packages for the tools and the tests (as root, on Debian or Ubuntu)
#   demo       runs the whole pipeline on the small model in golden/; builds only the tools that it calls
#   check      runs unit tests, command-line tests, demo and lint, with the stored goldens
#              (as root, demo and check first install missing packages)
#   check-fast  runs lint, quick unit tests and a few command-line tests, in a minute
#   tests      builds the test programs, for `tests/run.sh PATTERN`
#   judge      compares results with transformers, safetensors and tokenizers (makes its own venv)
#   gpu-check  runs everything that needs a GPU (status 77 without one); gpu-build builds its program; both
#              need only nvcc, gcc, make
#   judge-clip  measures transformers and vLLM with and without libfm_clip, on a quiet machine
#   clients    loads exports of every family in transformers, vLLM and SGLang (makes their venvs)
#   sweep      runs every tool with failing calls, kill -9, full disks, signals, damaged files; ten minutes
#   fuzz       runs every reader under clang's libFuzzer, two minutes each (CLANG, FUZZ_SECONDS, FUZZ_SAN)
#   lint       checks layers, format, scripts, man pages; prints lines by room and the options
#   golden     makes the golden files again (in the judge's venv)
#   bench      runs tests/measure/files.py and measure-engine: the speed of files and of the engine
#   bench-kernels  runs fm-bench kernels on a quiet machine, into tests/measure/RESULTS.md and kernels.json
#   study      runs the paper's ablations on small trained models, into tests/measure/study.md; takes hours
#              and can be resumed (STUDY: its options; run tests/judge/judge.sh --golden trained first)
#   mpi        builds fm-rank, fm-train and fm-recover with MPI, in build/mpi/bin; check-ranks tests them
#   deb        builds Debian packages (cmd/package/debian), in build/deb, with MAINTAINER="Name <name@host>"
#   arm64-check  builds for arm64 in a Debian 13 chroot, and runs the unit tests there under QEMU
#              (as root; needs debootstrap)
#   packages-check  builds, installs and uses deb and wheel in Debian 12 and 13 chroots
#              (as root; needs debootstrap)
#   wheel      builds a wheel for pip, in build/wheel: libfm_clip for PyTorch, the modelling file, fm_sglang
#   install, uninstall  tools, man pages, completions, libfm_clip, runtime files
#   clean
#
# Variables: PREFIX DESTDIR BINDIR MANDIR LIBDIR INCLUDEDIR DATADIR BASHDIR ZSHDIR, V=1 (show commands),
# SAN=address,undefined, CUDA=auto|0|1, MPI=0|1 (MPI_PKG: its pkg-config name), CC, CFLAGS, NVCC, and
# PKG_CONFIG.  DEBUG=1 looks for NaN and Inf after each operation, reads FM_TRACE and compiles with
# -Og (fm-hacking(7), DEBUGGING).  Each choice of DEBUG, SAN, CUDA and MPI has its own build folder.
# CROSS_COMPILE=aarch64-linux-gnu- builds for arm64 with Debian's compiler and libraries (fm-hacking(7)).
# A oneDNN in another place: make BUILD=build/dnnl3 DNNL_CPPFLAGS=-I... \
#     DNNL_LIBS="-L... -Wl,-rpath,... -ldnnl -lgomp"

PREFIX  ?= /usr/local
BINDIR  ?= $(PREFIX)/bin
MANDIR  ?= $(PREFIX)/share/man
DATADIR ?= $(PREFIX)/share/fm
LIBDIR  ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
INSTALL ?= install
# Cross-compilation: the tools with this prefix, no CUDA, a separate folder.
CROSS_COMPILE ?=
ifneq ($(CROSS_COMPILE),)
CC := $(CROSS_COMPILE)gcc
CXX := $(CROSS_COMPILE)g++
AR := $(CROSS_COMPILE)ar
PKG_CONFIG := $(CROSS_COMPILE)pkg-config
CUDA := 0
endif
PKG_CONFIG ?= pkg-config
CLANG_FORMAT ?= clang-format
CUDA ?= auto
MPI ?= 0
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
SAN ?=
DEBUG ?= 0
V ?= 0
# Print a short line instead of a command, like `  CC      lib/base/err.c`; with V=1, the command.
SILENT := $(findstring s,$(firstword -$(MAKEFLAGS)))
say = $(if $(filter 1,$(V)),,@$(if $(SILENT),,printf '  %-7s %s\n' $(1) $(2:$(BUILD)/%=%); ))
Q := $(if $(filter 1,$(V)),,@)
VERSION := 0.1.0
# Scripts start without the options, functions and search path of the user's shell: with noexec, a check
# would do nothing and succeed.
unexport SHELLOPTS BASHOPTS BASH_ENV ENV CDPATH

MAKEFLAGS += -r
# Use all cores unless a -j was given to this make or to its parent.  The shell prints MAKEFLAGS because
# GNU make before 4.4 does not show -j in that variable here.
ifeq ($(filter -j% --j%,$(shell echo "$$MAKEFLAGS")),)
MAKEFLAGS += -j$(shell nproc)
endif
comma := ,
CUDA_SOURCES := $(wildcard kernels/*/*.cu kernels/*/*/*.cu)
HAVE_CUDA := $(filter 1,$(if $(filter auto,$(CUDA)),$(if $(SAN),0,$(shell command -v $(NVCC) >/dev/null 2>&1 && command -v $(CXX) >/dev/null 2>&1 && echo 1)),$(CUDA)))
BUILD := build$(CROSS_COMPILE:%-=/%)$(if $(filter 1,$(DEBUG)),/debug)$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))$(if $(filter 0,$(CUDA)),/no-cuda)

CFLAGS ?= $(if $(filter 1,$(DEBUG)),-Og,-O2) -g
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef \
	-Wconversion -Wno-string-conversion
# Golden numbers match across compilers only if no compiler contracts a*b+c.
FLAGS = -std=c11 $(WARN) $(CFLAGS) -ffp-contract=off -fno-math-errno -pthread $(SANFLAGS)
SANFLAGS := $(if $(SAN),-DFM_SANITIZED -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
# A bare machine with a GPU has only nvcc, gcc and make, so the GPU goals require no other packages.
GPU_ALONE := $(if $(filter gpu-%,$(MAKECMDGOALS)),$(if $(filter-out gpu-%,$(MAKECMDGOALS)),,1))
PKGS := $(if $(GPU_ALONE),,libarchive libxxhash libcjson libzstd libcrypto)
DNNL_CPPFLAGS ?=
DNNL_LIBS ?= -ldnnl -lgomp
# Evaluated once, at first use, which on a fresh machine is after packages were installed.
PKG_CFLAGS = $(eval PKG_CFLAGS := $(if $(PKGS),$(shell $(PKG_CONFIG) --cflags $(PKGS))))$(PKG_CFLAGS)
PKG_LIBS = $(eval PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(PKGS)))$(PKG_LIBS)
DEFINES := -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DFM_VERSION='"$(VERSION)"' $(if $(filter 1,$(DEBUG)),-DFM_DEBUG)
COMPILE = $(CC) -I. $(DEFINES) $(DNNL_CPPFLAGS) $(CPPFLAGS) $(PKG_CFLAGS) $(FLAGS) -MMD -MP -c
LINK = $(CC) $(SANFLAGS) $(LDFLAGS)
# Link only libraries that the tool calls: not all compilers do so by default, and none with SAN.
LIBS = -Wl,--as-needed $(LDLIBS) $(PKG_LIBS) $(DNNL_LIBS) $(CUDA_LIBS) -lm -lpthread

# The GPU side: code for sm_80 and sm_90, and PTX for later GPUs.  CUDA's runtime is linked statically,
# and the driver and cuBLAS are loaded at run time, so the result runs on machines without them.
NVFLAGS ?= -O3
GENCODE = -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
CUDA_LIBS := $(if $(HAVE_CUDA),-L$(CUDA_HOME)/lib64 -lcudart_static -lrt -ldl -Wl$(comma)-Bstatic -lstdc++ -Wl$(comma)-Bdynamic)

# The tools with MPI are the same objects and one more file, in a separate folder.  `make MPI=1` builds
# (and installs) them; `make check` also tests them if there is an MPI.
ifndef MPI_PKG # evaluated at each use, which on a fresh machine is after packages were installed
MPI_PKG = $(firstword $(foreach p,mpi-c ompi-c mpich,$(shell $(PKG_CONFIG) --exists $(p) 2>/dev/null && echo $(p))))
endif
MPI_BUILD := $(BUILD)/mpi$(if $(filter command% environment%,$(origin MPI_PKG)),-$(MPI_PKG))
MPI_MORE := $(MPI_BUILD)/lib/comm/wire_mpi.c.o $(if $(SAN),$(MPI_BUILD)/tests/unit/keep_loaded.c.o)
MPI_TOOLS := fm-rank fm-train fm-recover
MPI_TESTS := test_comm test_reduction

TOOLS := $(patsubst cmd/%.c,%,$(wildcard cmd/fm-*.c))
# Code used only by fm-bench and the tests has a separate archive.  (All tools use plot.c to recognise
# plots among their files.)
BENCH_C := $(filter-out lib/bench/plot.c,$(wildcard lib/bench/*.c lib/baseline/*.c kernels/clip/*.c))
LIB_C := $(filter-out lib/comm/wire_mpi.c $(BENCH_C),$(wildcard lib/*/*.c lib/*/*/*.c formats/*/*.c kernels/*/*.c))
TEST_C := $(wildcard tests/unit/test_*.c tests/fuzz/fuzz_*.c)
LIB_O := $(LIB_C:%.c=$(BUILD)/%.c.o)
BENCH_O := $(BENCH_C:%.c=$(BUILD)/%.c.o) $(if $(HAVE_CUDA),$(CUDA_SOURCES:%.cu=$(BUILD)/%.cu.o))
CLI_O := $(patsubst %,$(BUILD)/%.o,$(filter-out cmd/main.c,$(wildcard cmd/*.c)))
BINS := $(TOOLS:%=$(if $(filter 1,$(MPI)),$(MPI_BUILD),$(BUILD))/bin/%)
SCRIPTS := cmd/fm-chat2text
TEST_CC := $(wildcard tests/unit/test_*.cc)
TESTS := $(TEST_C:tests/%.c=$(BUILD)/tests/%) $(TEST_CC:tests/%.cc=$(BUILD)/tests/%)
# A developers' measurement, which is not installed.
MEASURES := $(BUILD)/bin/measure-engine
MAN := $(wildcard man/*.[1-7])

# libfm_clip.so exports only kernels/clip/clip.h.  Its threads outlive dlclose, so it stays loaded.
CLIP_SO := libfm_clip.so.1
CLIP_O := $(patsubst %.c,$(BUILD)/%.c.o,$(wildcard kernels/clip/*.c) lib/base/dtype.c lib/base/isa.c) \
	$(if $(HAVE_CUDA),$(patsubst %.cu,$(BUILD)/%.cu.o,$(filter kernels/clip/%,$(CUDA_SOURCES))))
# Unused sections are dropped: with them, C++'s library would require a newer glibc than servers have.
CLIP_LINK := -shared -Wl,-soname,$(CLIP_SO) -Wl,--version-script=kernels/clip/clip.map -Wl,-z,nodelete -Wl,--gc-sections

all: $(BUILD)/libfm.a $(BINS) $(SCRIPTS:cmd/%=$(BUILD)/bin/%) $(BUILD)/libfm_clip.so
	$(if $(filter all,$(or $(MAKECMDGOALS),all)),$(if $(SILENT),,@echo "The tools are in $(patsubst %/,%,$(dir $(firstword $(BINS))))"),@:)

# The reference implementation (ref) is compiled for the baseline CPU; the cpu table uses other
# instructions only by run-time dispatch, so one binary runs on every x86-64.
$(BUILD)/kernels/cpu/%.c.o: FLAGS += -O3
$(BUILD)/kernels/clip/%.c.o $(BUILD)/lib/base/dtype.c.o $(BUILD)/lib/base/scaled.c.o $(BUILD)/formats/quant/encode.c.o: FLAGS += -O3
# Sizes are int there and indices are products of them with size_t, without casts.
$(BUILD)/kernels/%.c.o $(BUILD)/tests/%.c.o: FLAGS += -Wno-sign-conversion
$(filter %.c.o,$(CLIP_O)): FLAGS += -fPIC -fvisibility=hidden
$(BUILD)/formats/runtime/modeling.c.o: formats/runtime/modeling_fm.py
PAGE_SCRIPT := lib/page/page.js lib/page/charts.js lib/page/maps.js
# Digests in the form of a Content-Security-Policy: SHA-256 in base64.
digest_of = $(shell cat $(1) | sha256sum | cut -c1-64 | tr a-f A-F | basenc --base16 -d | base64)
PAGE_DIGESTS = -DFM_PAGE_SCRIPT_SHA256='"$(call digest_of,$(PAGE_SCRIPT))"' -DFM_PAGE_STYLE_SHA256='"$(call digest_of,lib/page/page.css)"'
$(BUILD)/lib/page/pagetext.c.o: FLAGS += $(PAGE_DIGESTS)
$(BUILD)/lib/page/pagetext.c.o: lib/page/page.html lib/page/page.css $(PAGE_SCRIPT)

$(SCRIPTS:cmd/%=$(BUILD)/bin/%): $(BUILD)/bin/%: cmd/% | deps-build
	@mkdir -p $(@D)
	$(call say,COPY,$@)$(INSTALL) -m 755 $< $@
# Tools are linked from archives, so that each contains only what it calls, and the CUDA runtime only if
# it uses a GPU.
$(BUILD)/bin/fm-bench: $(BUILD)/libbench.a
$(BUILD)/bin/%: $(BUILD)/cmd/main/%.o $(BUILD)/libcli.a $(BUILD)/libfm.a
	@mkdir -p $(@D)
	$(call say,LD,$@)$(LINK) -o $@ $< $(BUILD)/libcli.a $(filter %/libbench.a,$^) $(BUILD)/libfm.a $(LIBS)
$(TOOLS:%=$(BUILD)/cmd/main/%.o): $(BUILD)/cmd/main/%.o: cmd/main.c | deps-build
	@mkdir -p $(@D)
	$(call say,CC,$(@:.o=))$(COMPILE) -DFM_MAIN=$(subst -,_,$*)_main -o $@ $<
$(MPI_BUILD)/lib/comm/wire_mpi.c.o: DEFINES += $(shell $(PKG_CONFIG) --cflags $(MPI_PKG))
$(MPI_BUILD)/%.c.o: %.c | deps-build
	@mkdir -p $(@D)
	$(call say,CC,$(@:.o=))$(COMPILE) -o $@ $<
$(MPI_TOOLS:%=$(MPI_BUILD)/bin/%): $(MPI_BUILD)/bin/%: $(BUILD)/cmd/main/%.o $(MPI_MORE) $(BUILD)/libcli.a $(BUILD)/libfm.a
	@mkdir -p $(@D)
	$(call say,LD,$@)$(LINK) -o $@ $^ $(LIBS) $(shell $(PKG_CONFIG) --libs $(MPI_PKG))
$(MPI_BUILD)/bin/%: $(BUILD)/bin/%
	@mkdir -p $(@D)
	$(Q)ln -sf ../../bin/$* $@
$(MPI_BUILD)/tests/%: $(BUILD)/tests/%.c.o $(MPI_MORE) $(BUILD)/libfm.a
	@mkdir -p $(@D)
	$(call say,LD,$@)$(LINK) -o $@ $^ -lcmocka $(LIBS) $(shell $(PKG_CONFIG) --libs $(MPI_PKG))
mpi: $(MPI_TOOLS:%=$(MPI_BUILD)/bin/%)
mpi-check: mpi $(MPI_TESTS:%=$(MPI_BUILD)/tests/unit/%)
$(BUILD)/libmeasure.a: $(patsubst %,$(BUILD)/tests/measure/%.c.o,meter synth workdir)
$(MEASURES): $(BUILD)/bin/%: $(BUILD)/tests/measure/%.c.o $(BUILD)/libmeasure.a $(BUILD)/libbench.a $(BUILD)/libfm.a
	@mkdir -p $(@D)
	$(call say,LD,$@)$(LINK) -o $@ $^ $(LIBS)
$(BUILD)/tests/%: $(BUILD)/tests/%.c.o $(BUILD)/libmeasure.a $(BUILD)/libbench.a $(BUILD)/libfm.a
	@mkdir -p $(@D)
	$(call say,LD,$@)$(LINK) -o $@ $^ -lcmocka $(LIBS)
$(BUILD)/libcli.a: $(CLI_O)
$(BUILD)/libfm.a: $(LIB_O)
$(BUILD)/libbench.a: $(BENCH_O)
$(BUILD)/%.a:
	$(call say,AR,$@)rm -f $@ && $(AR) rcs $@ $^
$(BUILD)/$(CLIP_SO): $(CLIP_O) kernels/clip/clip.map
	$(call say,LD,$@)$(LINK) $(CLIP_LINK) $(if $(SAN),,-Wl$(comma)-z$(comma)defs) -o $@ $(CLIP_O) $(CUDA_LIBS) -lm -lpthread
$(BUILD)/libfm_clip.so: $(BUILD)/$(CLIP_SO)
	$(Q)ln -sf $(CLIP_SO) $@
$(BUILD)/%.c.o: %.c | deps-build
	@mkdir -p $(@D)
	$(call say,CC,$(@:.o=))$(COMPILE) -o $@ $<
# ptxas's report of registers and spills is kept with the object, for tests/unit/test_cuda_sass.sh.
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$(@:.o=))$(NVCC) -I. $(NVFLAGS) -std=c++17 $(GENCODE) -Xptxas -v -Xcompiler -Wall,-Wextra,-Wshadow,-fPIC \
		-MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$@.ptxas 2>&1 || { cat $@.ptxas >&2; rm -f $@; exit 1; }
	@grep -iE 'warning|error' $@.ptxas >&2 || true
$(if $(HAVE_CUDA),$(foreach f,clip clip_gpu,$(BUILD)/kernels/clip/$(f).c.o)): DEFINES += -DFM_CUDA
# The CUDA emulator jumps between the stacks of its threads, which glibc treats as an error if
# _FORTIFY_SOURCE is on by default (Ubuntu).
$(BUILD)/tests/%: tests/%.cc
	@mkdir -p $(@D)
	$(call say,CXX,$(@:.o=))$(CXX) -std=c++17 -U_FORTIFY_SOURCE -I. -Wall -Wextra -O2 -g -fno-strict-aliasing -Wno-unknown-pragmas -Wno-psabi -MMD -MP -MF $@.d -o $@ $<
$(TEST_C:%=$(BUILD)/%.o) $(TEST_CC:tests/%.cc=$(BUILD)/tests/%): | deps-check
# The check of the GPU side (tests/gpu): a program for a GPU, from the objects that are installed.
GPU_O = $(patsubst %.cu,$(BUILD)/%.cu.o,$(wildcard tests/gpu/*.cu)) $(CLIP_O)
$(BUILD)/tests/gpu/%.cu.o: GENCODE = -gencode arch=compute_80,code=[sm_80,compute_80]
$(BUILD)/tests/gpu/gpu_check: $(GPU_O)
	$(call say,LD,$@)$(LINK) -o $@ $^ $(CUDA_LIBS) -lm -lpthread
gpu-build: $(BUILD)/tests/gpu/gpu_check $(BUILD)/libfm_clip.so
-include $(wildcard $(BUILD)/tests/gpu/*.d)

# Libraries that tests preload into the tools: to make calls fail, to count reads, to misbehave.
PRELOADED := $(addprefix $(BUILD)/tests/unit/,broken.so faults.so reads.so)
$(PRELOADED): $(BUILD)/tests/unit/%.so: tests/unit/%.c | deps-check
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) -std=c11 $(WARN) $(CFLAGS) $(DEFINES) -shared -fPIC -o $@ $< -ldl
.SECONDARY:
-include $(wildcard $(MPI_BUILD)/lib/comm/*.d) $(LIB_O:.o=.d) $(BENCH_O:.o=.d) $(wildcard $(BUILD)/cmd/*.d $(BUILD)/cmd/main/*.d $(BUILD)/tests/*/*.d)

NEEDS_MPI := $(filter 1,$(MPI))$(filter mpi mpi-check check-ranks,$(MAKECMDGOALS))
DEPS = $(if $(NEEDS_MPI),MPI=1 MPI_PKG="$(MPI_PKG)") CC="$(CC)" CXX="$(CXX)" PKG_CONFIG="$(PKG_CONFIG)" CLANG_FORMAT="$(CLANG_FORMAT)" \
	CPPFLAGS="$(CPPFLAGS)" DNNL_CPPFLAGS="$(DNNL_CPPFLAGS)" sh tests/deps.sh
# Only deps, demo, check and deb install packages; building and installing never do.
DEPS_INSTALL := $(if $(filter demo check,$(MAKECMDGOALS)),install)
deps:
	@$(DEPS) install check
deps-build: $(if $(filter check,$(MAKECMDGOALS)),deps-check)
	$(if $(GPU_ALONE),,@$(DEPS) $(DEPS_INSTALL) build)
deps-check:
	@$(DEPS) $(DEPS_INSTALL) check

DEMO_TOOLS := fm-rank fm-train fm-recover fm-pack fm-verify
demo: $(DEMO_TOOLS:%=$(BUILD)/bin/%)
	@PATH="$(CURDIR)/$(BUILD)/bin:$$PATH" bash tests/demo.sh

# The hostile files of tests/bad, for test_bad and the fuzz programs.
BAD := $(BUILD)/bad.made
$(BAD): $(wildcard tests/bad/*.py)
	@python3 -B tests/bad/make.py $(BUILD)/bad && touch $@

# The programs that tests/run.sh needs.
tests: all $(TESTS) $(PRELOADED) $(MEASURES) $(BAD)

# Lint comes last, so that a misplaced space does not keep the tests from running.
check: deps-check all $(TESTS) $(PRELOADED) $(MEASURES) $(BAD) $(if $(MPI_PKG),mpi-check)
	@BUILD="$(BUILD)" SAN="$(SAN)" MPI_BUILD="$(CURDIR)/$(MPI_BUILD)" bash tests/run.sh; status=$$?; \
		$(MAKE) --no-print-directory lint && exit $$status

# For the edit-compile-test cycle: lint, unit tests that take at most a second of processor time each, and
# a few command-line tests; at most a minute together.
SLOW := bench clip clip_bf16 command costs estimate granularity hfdir kernelbench kernels_cpu model \
	rank recover baselines safetensors signals sweep sweep_runs tokenizer train
FAST := $(filter-out $(SLOW:%=tests/unit/test_%.c),$(wildcard tests/unit/test_*.c))
FAST_CLI := help|usage|man-options|output|list|json|pipeline|criterion
empty :=
check-fast: deps-check $(BINS) $(BAD) $(FAST:tests/%.c=$(BUILD)/tests/%)
	@$(MAKE) --no-print-directory lint
	@BUILD="$(BUILD)" SAN="$(SAN)" \
		bash tests/run.sh '@($(subst $(empty) $(empty),|,$(FAST:tests/%.c=%))|cli/@($(FAST_CLI)))'

# Only the tests of ranks, for SAN=address,undefined or another MPI (fm-hacking(7)).
check-ranks: mpi-check $(TOOLS:%=$(BUILD)/bin/%) $(MPI_TESTS:%=$(BUILD)/tests/unit/%)
	@BUILD="$(BUILD)" SAN="$(SAN)" MPI_BUILD="$(CURDIR)/$(MPI_BUILD)" bash tests/run.sh '@(unit/test_@(comm|reduction|ranks)|cli/mpi*)'

judge: all
	@BUILD="$(BUILD)" bash tests/judge/judge.sh
	@bash tests/judge/packages.sh || [ $$? = 77 ]
judge-clip: all
	@BUILD="$(BUILD)" bash tests/judge/clients.sh --clip
clients: all
	@BUILD="$(BUILD)" bash tests/judge/clients.sh
golden:
	@bash tests/judge/judge.sh --golden
arm64-check:
	@bash tests/arm64.sh
fuzz:
	@bash tests/fuzz/fuzz.sh
sweep: all $(PRELOADED)
	@BUILD="$(BUILD)" python3 -B tests/sweep/sweep.py all --seconds 600
gpu-check:
	@BUILD="$(BUILD)" NVCC="$$(command -v $(NVCC))" bash tests/gpu/gpu-check.sh $(PARTS)
bench: all $(MEASURES)
	@BUILD="$(BUILD)" python3 -B tests/measure/files.py && $(BUILD)/bin/measure-engine

models:
	python3 tests/models.py --write
bench-kernels: all
	@BUILD="$(BUILD)" bash tests/measure/kernels.sh

study: all
	@BUILD="$(BUILD)" python3 -B tests/measure/study.py $(STUDY)

# Versions of clang-format differ; the tree is formatted with version 14, which is in Debian 12.
STYLED = $(wildcard $(addsuffix /*.[ch],lib/* lib/*/* formats/* kernels/* kernels/clip/cuda cmd tests/*) \
	$(addsuffix /*.cu*,kernels/* kernels/clip/cuda tests/gpu) tests/unit/*.cc)
lint: deps-check
	@python3 tests/rooms.py && python3 tests/rooms.py --table
	@python3 tests/signposts.py
	@python3 tests/models.py
	@if $(CLANG_FORMAT) --version | grep -q 'version 14'; then \
		$(CLANG_FORMAT) --dry-run -Werror $(STYLED); else echo "lint: format not checked (no clang-format 14)"; fi
	@shellcheck -x $(wildcard tests/*.sh $(filter-out tests/cli/%,$(wildcard tests/*/*.sh))) .ci/run && shellcheck -x -s bash $(wildcard tests/cli/*.sh)
	@! grep -rnwE 'cJSON_(Has|Get)ObjectItem' cmd formats kernels lib || { echo "lint: this ignores the case of keys; use fm_json_has()"; exit 1; }
	@! grep -rnE '\b(strcpy|strcat|v?sprintf)\(' cmd formats kernels lib || { echo "lint: use snprintf or memcpy, which have a size"; exit 1; }
	@! pyflakes3 $$(git ls-files '*.py' 2>/dev/null) </dev/null | grep 'undefined name'
	@for m in $(MAN); do mandoc -Tlint -Wwarning $$m || exit 1; done
	@! git ls-files 2>/dev/null | grep -Ev '^(\.|Makefile$$|README\.md$$|(cmd|formats|golden|kernels|lib|man|tests)/)' || \
		{ echo "lint: the top level has no other files and folders"; exit 1; }

include cmd/package/install.mk
include cmd/package/package.mk
clean:
	rm -rf build

.PHONY: all deps demo tests check check-fast judge judge-clip wheel deb packages-check arm64-check clients fuzz sweep gpu-check lint golden models bench bench-kernels study mpi mpi-check check-ranks install uninstall clean \
	deps-build deps-check gpu-build
