# The fm suite.  Targets:
#
#   all        the six tools, in build/
#   demo       the whole pipeline on the small model in golden/, with a table of budgets
#   check      unit tests, command-line tests, lint, demo; stored goldens only
#   judge      the same facts from transformers, safetensors, tokenizers (makes its own venv)
#   lint       layers, format, shell, man pages
#   golden     make the golden files again (needs the judge's venv)
#   bench      fm-bench io and engine
#   install, uninstall, clean
#
# Variables: PREFIX DESTDIR BINDIR MANDIR, V=1 (show commands), SAN=address,undefined,
# CUDA=auto|0|1, CC, CFLAGS, NVCC, and one PKG_CONFIG.  Each SAN/CUDA choice has its own folder.

PREFIX  ?= /usr/local
BINDIR  ?= $(PREFIX)/bin
MANDIR  ?= $(PREFIX)/share/man
INSTALL ?= install
PKG_CONFIG ?= pkg-config
CLANG_FORMAT ?= clang-format
CUDA ?= auto
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
SAN ?=
V ?= 0
Q := $(if $(filter 1,$(V)),,@)
VERSION := 0.1.0

MAKEFLAGS += -r
comma := ,
CUDA_SOURCES := $(wildcard kernels/*.cu)
HAVE_CUDA := $(if $(CUDA_SOURCES),$(filter 1,$(if $(filter auto,$(CUDA)),$(shell command -v $(NVCC) >/dev/null 2>&1 && echo 1),$(CUDA))))
BUILD := build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))$(if $(HAVE_CUDA),/cuda)

CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef
# Golden numbers match across compilers only where neither contracts a*b+c by itself.
FLAGS = -std=c11 $(WARN) $(CFLAGS) -ffp-contract=off -fno-math-errno -pthread $(SANFLAGS)
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
PKGS := libarchive libxxhash libcjson libzstd
CPPFLAGS += -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DFM_VERSION='"$(VERSION)"' $(shell $(PKG_CONFIG) --cflags $(PKGS) 2>/dev/null)
LDLIBS += $(shell $(PKG_CONFIG) --libs $(PKGS) 2>/dev/null) -ldnnl -lgomp -lm -lpthread
DNNL_CPPFLAGS ?=

TOOLS := $(patsubst cmd/%.c,%,$(wildcard cmd/fm-*.c))
LIB_C := $(wildcard lib/base/*.c lib/*.c formats/*.c kernels/*.c)
TEST_C := $(wildcard tests/test_*.c)
LIB_O := $(LIB_C:%.c=$(BUILD)/%.c.o) $(if $(HAVE_CUDA),$(CUDA_SOURCES:%.cu=$(BUILD)/%.cu.o))
BINS := $(TOOLS:%=$(BUILD)/bin/%)
TESTS := $(TEST_C:tests/%.c=$(BUILD)/tests/%)
MAN := $(wildcard man/*.[1-7])

all: deps-build $(BINS)

# The definition (ref) is compiled plainly; the cpu table may use what the build machine offers
# through run-time dispatch only, so one binary serves every x86-64.
$(BUILD)/kernels/cpu%.c.o: FLAGS += -O3
$(BUILD)/lib/base/dtype.c.o: FLAGS += -O3

$(BUILD)/bin/%: $(BUILD)/cmd/%.c.o $(BUILD)/cmd/cli.c.o $(BUILD)/libfm.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(SANFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/tests/%: $(BUILD)/tests/%.c.o $(BUILD)/libfm.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(SANFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(BUILD)/libfm.a: $(LIB_O)
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$(BUILD)/%.c.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(DNNL_CPPFLAGS) $(FLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(Q)$(NVCC) -I. -O3 -std=c++17 -Xcompiler -Wall -MMD -MP -c -o $@ $<
.SECONDARY:
-include $(LIB_O:.o=.d) $(TEST_C:%.c=$(BUILD)/%.c.d) $(wildcard $(BUILD)/cmd/*.d)

# What is missing is installed (root on Debian or Ubuntu), or the one line to run is printed.
deps-build:
	@sh tests/deps.sh build
deps-check:
	@sh tests/deps.sh check

demo: all
	@PATH="$(CURDIR)/$(BUILD)/bin:$$PATH" sh tests/demo.sh

check: deps-check all $(TESTS) lint
	@BUILD="$(BUILD)" SAN="$(SAN)" bash tests/run.sh

judge: all
	@BUILD="$(BUILD)" bash tests/judge.sh
golden:
	@bash tests/judge.sh --golden
bench: all
	@$(BUILD)/bin/fm-bench io && $(BUILD)/bin/fm-bench engine

lint: deps-check
	@bash tests/layers.sh
	@$(CLANG_FORMAT) --dry-run -Werror $(wildcard lib/base/*.[ch] lib/*.[ch] formats/*.[ch] kernels/*.[ch] cmd/*.[ch] tests/*.[ch])
	@shellcheck -x tests/*.sh tests/cli/*.sh .ci/run
	@if command -v mandoc >/dev/null; then for m in $(MAN); do mandoc -Tlint -Wwarning $$m || exit 1; done; fi

install: all
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man5 $(DESTDIR)$(MANDIR)/man7
	$(INSTALL) -m 755 $(BINS) $(DESTDIR)$(BINDIR)
	for m in $(MAN); do $(INSTALL) -m 644 $$m $(DESTDIR)$(MANDIR)/man$${m##*.}; done
uninstall:
	cd $(DESTDIR)$(BINDIR) && rm -f $(TOOLS)
	for m in $(notdir $(MAN)); do rm -f $(DESTDIR)$(MANDIR)/man$${m##*.}/$$m; done
clean:
	rm -rf build

.PHONY: all demo check judge lint golden bench install uninstall clean deps-build deps-check
