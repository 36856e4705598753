# Targets: all deps demo tests test test-long test-onednn3 test-torch test-python test-python-sanitized wheel race sanitized bench lint format install uninstall
# bless fuzz clean oracle-tokenizer oracle-models oracle-finetune.
# BUILD=dir builds elsewhere; V=1 prints whole commands.
VERSION := 0.1.0
SOVERSION := 0
BUILD ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
PREFIX ?= /usr/local
DESTDIR ?=
# Of targets that do several things (test, demo, install), when make itself was not told.
JOBS = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))

# A file that is made is one short line: $(call show,WHAT,FILE), then its commands behind $(Q). With -s
# not even that.
ifneq ($(V),1)
Q := @
silent := $(findstring s,$(firstword -$(MAKEFLAGS)))
show = @$(if $(silent),:,printf '  %-7s %s\n' $(1) '$(or $(2),$@)')
MAKEFLAGS += --no-print-directory
endif

OBJCOPY  ?= objcopy
CSTD     := -std=gnu11
WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wvla
OPT      ?= -O2 -g1
OPENMP   ?= -fopenmp
CFLAGS   += $(CSTD) $(WARN) $(OPT) -fPIC -fvisibility=hidden $(OPENMP) -ffp-contract=off \
            -fno-math-errno -fno-trapping-math -DTN_VERSION='"$(VERSION)"' -Iinclude $(if $(ONEDNN),-I$(ONEDNN)/include) $(EXTRA)
# oneDNN, 2.6 or 3.x: the system's, or of ONEDNN=DIR, which has include and lib.
ONEDNN   ?=
LDLIBS   += $(addprefix -L,$(ONEDNN:%=%/lib)) $(addprefix -Xlinker -rpath -Xlinker ,$(ONEDNN:%=%/lib)) -ldnnl -ljansson -lpcre2-8 -lutf8proc $(ZLIB:%=-lz) $(ZSTD:%=-lzstd) -lm

# Compressed data is read where these libraries are; ZLIB= and ZSTD= leave them out.
number := \#
there = $(shell echo '$(number)include <$1>' | $(CC) -fsyntax-only -xc - 2>/dev/null && echo yes)
ZLIB := $(call there,zlib.h)
ZSTD := $(call there,zstd.h)
$(BUILD)/src/io/inflate.o: CFLAGS += $(ZLIB:%=-DTN_ZLIB) $(ZSTD:%=-DTN_ZSTD)

# *.cu and *_cuda.c: for GPUs, where nvcc is. CUDA_HOME= leaves them out. Machine code for CUDA_ARCH, and for other
# GPUs from CUDA_PTX on intermediate code, which their driver compiles. Those with most of what is written as
# instructions have machine code for CUDA_ASM_ARCH in any case, as only an assembler knows whether these are right.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(firstword $(wildcard $(addsuffix /nvcc,$(subst :, ,$(PATH)) /usr/local/cuda/bin)))))
CUDA_PTX  ?= 80
CUDA_ARCH ?= 90a
CUDA_ASM_ARCH ?= $(CUDA_ARCH)
CUDA_OPT  ?= -O3
ifneq ($(CUDA_HOME),)
NVCC      ?= $(CUDA_HOME)/bin/nvcc
NVCCFLAGS += -std=c++20 $(CUDA_OPT) -fmad=false $(foreach a,$(CUDA_PTX),-gencode=arch=compute_$(a),code=compute_$(a)) \
             $(foreach a,$(sort $(CUDA_ARCH) $(asm_arch)),-gencode=arch=compute_$(a),code=sm_$(a)) \
             -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall -Iinclude
CUDA      := $(patsubst %,$(BUILD)/%.o,$(wildcard src/*/*.cu src/*/*_cuda.c))
$(foreach f,flash_attention flash_attention_backward rms_norm,$(BUILD)/src/cuda/$f.cu.o): asm_arch = $(CUDA_ASM_ARCH)
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread
endif

# *_mpi.c: modules for MPI, one for each whose compiler is there, as MPI_NAME says how to compile; MPI_NAME= leaves it
# out. Nothing else needs MPI, and only a process that a launcher started loads one.
MPIS := openmpi mpich
mpi_said  = $(or $(wordlist 2,99,$(shell $1 -show 2>/dev/null)),$(shell pkg-config --cflags --libs $2 2>/dev/null))
mpi_there = $(if $(wildcard $(or $(patsubst -I%,%/mpi.h,$(filter -I%,$1)),/usr/include/mpi.h)),$1)
mpi_flags = $(call mpi_there,$(mpi_said))
ifeq ($(origin MPI_openmpi),undefined)
MPI_openmpi := $(call mpi_flags,mpicc.openmpi,ompi-c)
endif
ifeq ($(origin MPI_mpich),undefined)
MPI_mpich := $(call mpi_flags,mpicc.mpich,mpich)
endif
MODULES := $(foreach m,$(MPIS),$(if $(MPI_$m),$(BUILD)/tenon-mpi-$m.so))
NO_MPI  := $(strip $(foreach m,$(MPIS),$(if $(MPI_$m),,$m)))

SRC := $(filter-out %_cuda.c %_mpi.c,$(wildcard src/*/*.c))
OBJ := $(SRC:%.c=$(BUILD)/%.o)
LIB := $(filter-out $(BUILD)/src/cli/% $(BUILD)/src/train/%,$(OBJ))
CLI := $(filter $(BUILD)/src/cli/% $(BUILD)/src/train/%,$(OBJ))

.DEFAULT_GOAL := all
all: $(BUILD)/tenon $(BUILD)/libtenon.so $(BUILD)/libtenon.a $(MODULES)

# Where steps and searches take their time. An OPT that is given holds everywhere.
HOT := attention base chunk comm cut decide exec flow machine op pass pick place plan product run spmd
ifeq ($(origin OPT),file)
$(patsubst %.c,$(BUILD)/%.o,$(wildcard $(HOT:%=src/%/*.c))): CFLAGS += -O3
endif

$(BUILD)/%.o: %.c
	$(call show,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/%.cu.o: %.cu
	$(call show,NVCC)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/%_cuda.c.o: %_cuda.c
	$(call show,CC)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -I$(CUDA_HOME)/include -MMD -MP -c $< -o $@

# What is part of the program as text: its lines as C strings.
$(BUILD)/%.inc: %
	$(call show,GEN)
	@mkdir -p $(@D)
	$(Q)sed 's/[\\"]/\\&/g; s/.*/"&\\n",/' $< >$@
$(BUILD)/src/page/page.o: $(BUILD)/src/page/page.css.inc $(BUILD)/src/page/page.js.inc
$(BUILD)/src/page/page.o: CFLAGS += -I$(BUILD)/src/page
$(BUILD)/src/fx/export.o: $(BUILD)/src/fx/export.py.inc
$(BUILD)/src/fx/export.o: CFLAGS += -I$(BUILD)/src/fx
FUSED_HEADERS := element lane lanes random rows team fused
$(BUILD)/src/cuda/fused_cuda.c.o: $(patsubst %,$(BUILD)/src/cuda/%.cuh.inc,$(FUSED_HEADERS))
$(BUILD)/src/cuda/fused_cuda.c.o: CFLAGS += -I$(BUILD)/src/cuda -DCUDA_HOME='"$(CUDA_HOME)"'

# One object whose only global names are those of tenon.h: a program may have an `emit` of its own.
$(BUILD)/libtenon.a: $(LIB)
	$(call show,AR)
	$(Q)$(LD) -r $^ -o $(BUILD)/libtenon.o
	$(Q)$(OBJCOPY) --localize-hidden $(BUILD)/libtenon.o
	$(Q)rm -f $@ && $(AR) rcs $@ $(BUILD)/libtenon.o

$(BUILD)/libtenon.so: $(LIB) $(CUDA)
	$(call show,LD)
	$(Q)$(CC) -shared -Wl,-soname,libtenon.so.$(SOVERSION) -Wl,--no-undefined $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)

$(BUILD)/tenon: $(CLI) $(LIB) $(CUDA)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)
	$(if $(NO_MPI),$(call show,"",without a module for MPI: $(NO_MPI) (see tools/deps.sh)))

define link_module
	$(call show,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) $(filter-out $(OPENMP),$(CFLAGS)) $(MPI_CUT) -shared -MMD -MP -MF $(@:.so=.d) -MT $@ $< -o $@ $(MPI_$1)
endef
$(BUILD)/tenon-mpi-%.so: src/comm/transport_mpi.c
	$(call link_module,$*)

# Test programs, and what runs them.
include tests/tests.mk

$(BUILD)/bench/%: $(BUILD)/bench/%.o $(BUILD)/tests/help.a $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)
.SECONDARY: $(patsubst %.c,$(BUILD)/%.o,$(wildcard bench/*.c))

deps:
	tools/deps.sh build compress

# Trains on the Bible for three minutes and a bit.
demo:
	tools/deps.sh demo
	$(Q)$(MAKE) $(JOBS) all
	tools/demo.sh $(BUILD)

# PREFIX and DESTDIR as usual. Documents for users are installed too, and link to each other.
GUIDES := api chunking clusters formats gpu measurements memory python tutorial
INTO = $(DESTDIR)$(PREFIX)
install: all
	$(call show,INSTALL,$(INTO))
	$(Q)install -d $(INTO)/bin $(INTO)/lib/pkgconfig $(INTO)/include $(INTO)/share/man/man1 $(INTO)/share/doc/tenon
	$(Q)install $(BUILD)/tenon $(INTO)/bin/tenon
	$(Q)install $(BUILD)/libtenon.so $(INTO)/lib/libtenon.so.$(VERSION)
	$(Q)ln -sf libtenon.so.$(VERSION) $(INTO)/lib/libtenon.so.$(SOVERSION)
	$(Q)ln -sf libtenon.so.$(SOVERSION) $(INTO)/lib/libtenon.so
	$(Q)install -m 644 $(BUILD)/libtenon.a $(INTO)/lib/libtenon.a
	$(if $(MODULES),$(Q)install -d $(INTO)/lib/tenon && install $(MODULES) $(INTO)/lib/tenon)
	$(Q)install -m 644 include/tenon.h $(INTO)/include/tenon.h
	$(Q)sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@MORE@|$(ZLIB:%=-lz) $(ZSTD:%=-lzstd)|' tools/tenon.pc.in >$(BUILD)/tenon.pc
	$(Q)install -m 644 $(BUILD)/tenon.pc $(INTO)/lib/pkgconfig/tenon.pc
	$(Q)install -m 644 docs/tenon.1 $(INTO)/share/man/man1/tenon.1
	$(Q)install -m 644 $(GUIDES:%=docs/%.md) $(INTO)/share/doc/tenon

uninstall:
	$(call show,REMOVE,$(INTO))
	$(Q)rm -f $(INTO)/bin/tenon $(INTO)/include/tenon.h $(INTO)/share/man/man1/tenon.1 \
	    $(INTO)/lib/libtenon.so $(INTO)/lib/libtenon.so.$(SOVERSION) \
	    $(INTO)/lib/libtenon.so.$(VERSION) $(INTO)/lib/libtenon.a $(INTO)/lib/pkgconfig/tenon.pc \
	    $(GUIDES:%=$(INTO)/share/doc/tenon/%.md) \
	    $(MPIS:%=$(INTO)/lib/tenon/tenon-mpi-%.so)
	$(Q)rmdir $(INTO)/lib/tenon 2>/dev/null || true

# Warnings are errors for both compilers; the tables are aligned by hand.
STYLED := $(wildcard src/*/*.[ch] src/*/*.cu src/*/*.cuh include/*.h tests/*/*.[ch] tests/*/*.cu  \
            bench/*.[ch] bench/*.cu)
lint:
	tools/deps.sh lint
	tools/layers.sh
	tools/docs.sh check
	clang-format --dry-run -Werror $(STYLED)
	tools/cppcheck.sh
	$(Q)$(MAKE) $(JOBS) CC=clang CUDA_ARCH=80 BUILD=$(BUILD)/lint-clang EXTRA="$(EXTRA) -Werror" all tests
	$(Q)NVCCFLAGS="-Werror all-warnings" CUDA_ARCH="80 90a" $(MAKE) $(JOBS) CC=gcc BUILD=$(BUILD)/lint-gcc EXTRA="$(EXTRA) -Werror" all tests
	tools/style.sh $(BUILD)/lint-gcc

# Against Hugging Face's tokenizers, where PYTHON has that package.
oracle-tokenizer: all
	tools/tokenizer-oracle.sh $(BUILD)

# Against Hugging Face's transformers, where PYTHON has it with torch and safetensors.
oracle-models: all
	tools/oracle-models.sh $(BUILD)

# A fine-tune that is stopped and resumed, loaded by transformers, where PYTHON has that with torch.
oracle-finetune: all
	tools/oracle-finetune.sh $(BUILD)

# Graphs traced by PyTorch, where PYTHON has it, against its own results.
test-torch: all
	tools/test_torch.sh $(BUILD)

# python/tenon, against PyTorch, which is installed into TORCH_VENV where PYTHON has none.
test-python: all $(BUILD)/tests/export_cases
	tools/test_python.sh $(BUILD)

# The same of the library under sanitizers: a Step, the backend, the loop.
test-python-sanitized:
	$(Q)$(MAKE) $(JOBS) CUDA_HOME= BUILD=$(BUILD)/sanitized OPT="-O1 -g1" EXTRA="$(EXTRA) $(SANITIZE)" \
	    $(BUILD)/sanitized/libtenon.so $(BUILD)/sanitized/tenon
	tools/test_python.sh $(BUILD)/sanitized test_step test_backend test_train

# dist/tenon-VERSION-*.whl: python/tenon with the library, the program, and what they need but libc.
wheel: $(BUILD)/wheel/libtenon.so $(BUILD)/wheel/tenon
	$(or $(PYTHON),python3) tools/wheel.py $(BUILD)/wheel
$(BUILD)/wheel/tenon: $(CLI) $(LIB) $(CUDA)
	$(call show,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN' $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)
$(BUILD)/wheel/libtenon.so: $(LIB) $(CUDA)
	$(call show,LD)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,libtenon.so.$(SOVERSION),--no-undefined,--disable-new-dtags,-rpath,'$$ORIGIN' $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)

# Writes the expected part of tests/pass anew; git shows what that changes.
bless: $(BUILD)/tests/test_pass
	$< bless

format:
	clang-format -i $(STYLED)

# Time products and attention on a GPU; they have src/cuda/matmul_cuda.c and flash_attention_backward.cu
# in themselves.
ifneq ($(CUDA_HOME),)
$(BUILD)/bench/gpu_matmul.o: CFLAGS += -I$(CUDA_HOME)/include
$(BUILD)/bench/gpu_matmul: $(BUILD)/bench/gpu_matmul.o $(LIB) $(filter-out %/matmul_cuda.c.o,$(CUDA))
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)
$(BUILD)/bench/gpu_flash: $(BUILD)/bench/gpu_flash.cu.o $(LIB) $(filter-out %/flash_attention_backward.cu.o,$(CUDA))
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)

# A step's seconds, memory and calls.
$(BUILD)/bench/gpu_step.o: CFLAGS += -I$(CUDA_HOME)/include
$(BUILD)/bench/gpu_step: $(BUILD)/bench/gpu_step.o $(LIB) $(CUDA)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)

# What share of the bandwidth the problems of bench/rate reach.
$(BUILD)/bench/gpu_rate.o: CFLAGS += -I$(CUDA_HOME)/include
$(BUILD)/bench/gpu_rate: $(BUILD)/bench/gpu_rate.o $(BUILD)/tests/help.a $(LIB) $(CUDA)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $(filter-out %/help.a,$^) $(BUILD)/tests/help.a -o $@ $(LDLIBS) $(CUDA_LIBS)
endif

bench: all $(BUILD)/bench/place $(BUILD)/bench/chunk_head
	bench/run.sh $(BUILD)/tenon

clean:
	rm -rf $(BUILD)

-include $(OBJ:.o=.d) $(MODULES:.so=.d) $(CUDA:.o=.d) $(SIMT:.o=.d) $(BUILD)/simt/src/cuda/memory.d $(BUILD)/simt/tests/shared/simt_try.d $(TEST_HELP:.o=.d) $(wildcard $(addprefix $(BUILD)/,bench/*.d tests/programs/*.d tests/mpi/*.d tests/shared/*_cuda.c.d))
# A recipe that fails leaves no target behind that looks up to date.
.DELETE_ON_ERROR:
.PHONY: all bench deps demo install uninstall tests test test-long test-onednn3 race sanitized lint bless fuzz format clean \
	oracle-tokenizer oracle-models oracle-finetune test-torch test-python test-python-sanitized wheel
