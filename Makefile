# Targets: all deps demo test test-long test-onednn3 test-torch race bench lint install uninstall bless fuzz clean
# oracle-tokenizer oracle-models oracle-finetune.
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
OPT      ?= -O3 -g1
OPENMP   ?= -fopenmp
CFLAGS   += $(CSTD) $(WARN) $(OPT) -fPIC -fvisibility=hidden $(OPENMP) -ffp-contract=off \
            -fno-math-errno -fno-trapping-math -DTN_VERSION='"$(VERSION)"' -Iinclude $(if $(ONEDNN),-I$(ONEDNN)/include) $(EXTRA)
# oneDNN, 2.6 or 3.x: the system's, or of ONEDNN=DIR, which has include and lib.
ONEDNN   ?=
LDLIBS   += $(addprefix -L,$(ONEDNN:%=%/lib)) $(addprefix -Xlinker -rpath -Xlinker ,$(ONEDNN:%=%/lib)) -ldnnl -ljansson -lpcre2-8 -lutf8proc -lm

# *.cu and *_cuda.c: for GPUs, where nvcc is. CUDA_HOME= leaves them out. Machine code for CUDA_ARCH, and for other
# GPUs from CUDA_PTX on intermediate code, which their driver compiles.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(firstword $(wildcard $(addsuffix /nvcc,$(subst :, ,$(PATH)) /usr/local/cuda/bin)))))
CUDA_PTX  ?= 80
CUDA_ARCH ?= 90a
ifneq ($(CUDA_HOME),)
NVCC      ?= $(CUDA_HOME)/bin/nvcc
NVCCFLAGS += -std=c++20 -O3 -fmad=false $(foreach a,$(CUDA_PTX),-gencode=arch=compute_$(a),code=compute_$(a)) \
             $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$(a),code=sm_$(a)) \
             -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall -Iinclude
CUDA      := $(patsubst %,$(BUILD)/%.o,$(wildcard src/*/*.cu src/*/*_cuda.c))
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
FUSED_HEADERS := element lane random rows fused
$(BUILD)/src/op/fused_cuda.c.o: $(patsubst %,$(BUILD)/src/op/%.cuh.inc,$(FUSED_HEADERS))
$(BUILD)/src/op/fused_cuda.c.o: CFLAGS += -I$(BUILD)/src/op -DCUDA_HOME='"$(CUDA_HOME)"'

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

# The kernels of ops, and src/exec/memory.cu, for the processor (tests/simt.h). Functions of two files may have one name, as for
# a GPU: all but the lists of kernels becomes local.
SIMT := $(patsubst %.cu,$(BUILD)/simt/%.o,$(wildcard src/op/*.cu)) $(BUILD)/src/op/kernels_cuda.c.o
SIMTFLAGS := -std=c++20 -O1 -g1 -Wall -Wno-unknown-pragmas -fno-exceptions -fno-rtti -fno-threadsafe-statics \
             -fno-gnu-unique -ffp-contract=off -DTN_SIMT -include tests/simt.h -Iinclude $(EXTRA)
$(BUILD)/simt/%.o: %.cu
	$(call show,CXX)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(SIMTFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -x c++ -c $< -o $@.all
	$(Q)$(LD) -r --force-group-allocation $@.all -o $@.one
	$(Q)$(OBJCOPY) -w --keep-global-symbol='cuda_*' $@.one $@
	$(Q)rm -f $@.all $@.one
$(BUILD)/tests/test_cuda_memory: $(SIMT) $(BUILD)/tests/fused_made.o $(BUILD)/simt/src/exec/memory.o
$(BUILD)/tests/test_cuda: $(SIMT) $(BUILD)/tests/fused_made.o
$(BUILD)/tests/test_simt: $(BUILD)/simt/tests/simt_try.o

# Prints the texts of bodies that it then has compiled in.
FUSED_TEST := $(addprefix $(BUILD)/tests/,test_cuda_fused.o help.a) $(LIB) $(SIMT)
$(BUILD)/tests/fused_texts: $(FUSED_TEST)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)
$(BUILD)/simt/fused_texts.cu: $(BUILD)/tests/fused_texts
	$(call show,GEN)
	$(Q)$< texts >$@
$(BUILD)/simt/fused_texts.o: $(BUILD)/simt/fused_texts.cu $(patsubst %,src/op/%.cuh,$(FUSED_HEADERS))
	$(call show,CXX)
	$(Q)$(CXX) $(SIMTFLAGS) -fno-strict-aliasing -Isrc/op -x c++ -c $< -o $@
$(BUILD)/tests/test_cuda_fused: $(SIMT) $(BUILD)/simt/fused_texts.o

# Every tests/test_*.c is a program that ends with "N passed, N failed" and a matching exit code. From
# the other files of tests/ each takes what it uses. Of the library objects, not the archive: the op
# table's rows may be weak.
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter-out $(if $(CUDA_HOME),,%_cuda.c),$(wildcard tests/test_*.c)))
TEST_HELP := $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(filter-out tests/test_%.c %_cuda.c,$(wildcard tests/*.c)))
# Programs for mpirun, and the modules with short messages cut as only long ones are.
MPI_TESTS := $(addprefix $(BUILD)/tests/mpi/,direct jobs) $(MODULES:$(BUILD)/%=$(BUILD)/tests/mpi/%)
tests: $(TESTS) $(BUILD)/tests/fused_texts $(MPI_TESTS) $(if $(CUDA_HOME),$(addprefix $(BUILD)/tests/,gpu_op gpu_ref nvrtc))
$(BUILD)/tests/help.a: $(TEST_HELP)
	$(call show,AR)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/tests/help.a $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)
.PRECIOUS: $(BUILD)/tests/%.o

$(BUILD)/tests/mpi/%.so: MPI_CUT := -DCHUNK=1000
$(BUILD)/tests/mpi/tenon-mpi-%.so: src/comm/transport_mpi.c
	$(call link_module,$*)

# Compiles texts for a GPU without one.
$(BUILD)/tests/nvrtc: $(BUILD)/tests/nvrtc_cuda.c.o $(BUILD)/src/op/fused_cuda.c.o $(BUILD)/tests/help.a $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)

# Has src/op/matmul_cuda.c in itself, and what stands in for CUDA's libraries.
$(BUILD)/tests/test_lt_cuda.o: CFLAGS += -I$(CUDA_HOME)/include

# The same as test_cuda and test_ref, on a GPU.
$(BUILD)/tests/gpu_op: $(BUILD)/tests/gpu_op_cuda.c.o
$(BUILD)/tests/gpu_ref: $(BUILD)/tests/test_ref.o
$(BUILD)/tests/gpu_op $(BUILD)/tests/gpu_ref: $(BUILD)/tests/help.a $(LIB) $(CUDA)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $(filter-out %/help.a,$^) $(BUILD)/tests/help.a -o $@ $(LDLIBS) $(CUDA_LIBS)

$(BUILD)/bench/%: $(BUILD)/bench/%.o $(BUILD)/tests/help.a $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)
.PRECIOUS: $(BUILD)/bench/%.o

# Every plan that a test makes is checked (tests/check_plans.c), but where allocations are counted or made
# to fail, and where planning is timed.
UNCHECKED := test_alloc test_fault test_scale test_tune
$(filter-out $(UNCHECKED:%=$(BUILD)/tests/%),$(TESTS)): LDLIBS += -Wl,-u,__wrap_plan_make \
    -Wl,--wrap=plan_make -Wl,--wrap=plan_ordered

# Where one rank's calls fail.
$(BUILD)/tests/test_rank_files: LDLIBS += $(foreach f,pwrite pread fsync rename,-Wl,--wrap=$(f))
$(BUILD)/tests/test_schedule: $(BUILD)/src/train/schedule.o
$(BUILD)/tests/test_peak: $(BUILD)/src/train/peak.o
$(BUILD)/tests/test_signals: $(BUILD)/src/train/interrupt.o
$(BUILD)/tests/test_evaluate: $(addprefix $(BUILD)/src/train/,evaluate.o batch.o port.o peak.o)
$(BUILD)/tests/test_train_ranks: $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/train/*.c))
$(BUILD)/tests/test_train_ranks: LDLIBS += -Wl,--wrap=peak_new -Wl,--wrap=tn_program_save

# Counts calls of these from the objects linked here.
ALLOCATES := malloc calloc realloc aligned_alloc posix_memalign strdup strndup fopen mmap
$(BUILD)/tests/test_alloc: LDLIBS += $(ALLOCATES:%=-Wl,--wrap=%)

# Has AMX, in software where the processor does not.
$(BUILD)/tests/test_op: LDLIBS += -Wl,-u,__wrap_amx_has -Wl,--wrap=amx_has

# Counts the elements that references get and set.
$(BUILD)/tests/test_work: LDLIBS += $(foreach f,get int set,-Wl,--wrap=tensor_$(f))

# Counts what oneDNN is asked to make.
$(BUILD)/tests/test_workspace: LDLIBS += \
    $(foreach f,engine stream primitive primitive_desc matmul_primitive_desc memory,-Wl,--wrap=dnnl_$(f)_create)

# Refuses threads.
$(BUILD)/tests/test_device: LDLIBS += -Wl,--wrap=pthread_create

# What reads the state of a run that goes on.
RESUMES := $(filter $(BUILD)/src/train/% %/cli/options.o %/cli/option_table.o %/cli/foreign.o %/cli/paths.o %/cli/resume.o,$(CLI))
$(BUILD)/tests/test_corrupt: $(RESUMES)
$(BUILD)/fuzz_state: $(BUILD)/tests/state_case.o $(RESUMES)

# Calls the commands themselves, in the place of the program's main.
$(BUILD)/tests/test_options: $(CLI)
$(BUILD)/tests/test_options: LDLIBS += -Wl,--wrap=main

# Is the whole program, in whose place its main runs; under sanitizers malloc cannot be its own.
$(BUILD)/tests/test_fault: $(CLI)
$(BUILD)/tests/test_fault: LDLIBS += -Wl,--wrap=main -Wl,--wrap=peak_new \
    $(if $(findstring TN_SANITIZE,$(EXTRA)),$(patsubst %,-Xlinker --wrap=%,$(filter-out fopen,$(ALLOCATES))))

deps:
	tools/deps.sh build

# Trains on the Bible for three minutes and a bit.
demo:
	tools/deps.sh demo
	$(Q)$(MAKE) $(JOBS) all
	tools/demo.sh $(BUILD)

# PREFIX and DESTDIR as usual. Documents for users are installed too, and link to each other.
GUIDES := api chunking clusters formats gpu measurements memory tutorial
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
	$(Q)sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' tools/tenon.pc.in >$(BUILD)/tenon.pc
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

# Kills, resumes, threads, 20,000 random graphs, 500 on the emulated device: what takes minutes.
test-long: all race
	$(Q)$(MAKE) sanitized SLOW="test_ref test_spmd_ref" SANITIZED="cli.sh mpi.sh place.sh"
	tools/test.sh $(BUILD)/sanitized test_op
	TN_LONG=1 tools/test.sh $(BUILD) emulated.sh fit.sh isa.sh mpi.sh ranks.sh ranks_kill.sh resume.sh test_corrupt test_cuda test_cut test_emulated test_fault test_flow test_norm test_place test_prop test_reshard test_spmd test_spmd_ref

# What runs in several threads of the caller, ranks, and the thread that reads data, under ThreadSanitizer. It does
# not know OpenMP's own, so that kernels run in one thread; oneDNN has OpenMP built in.
RACES := test_concurrent test_data_batch test_device test_emulated test_comm test_transport test_ranks_api test_train_ranks \
         test_ranks_run test_ranks_staged test_rank_files
race:
	tools/deps.sh lint
	$(Q)$(MAKE) $(JOBS) CC=clang BUILD=$(BUILD)/race OPT="-O1 -g1" OPENMP= \
	    EXTRA="$(EXTRA) -fsanitize=thread -DTN_SANITIZE" $(RACES:%=$(BUILD)/race/tests/%)
	OMP_NUM_THREADS=1 TN_QUICK=1 tools/test.sh $(BUILD)/race $(RACES)

# Everything; then what is quick again under sanitizers (TN_QUICK: fewer random graphs, say): without what
# is for GPUs alone; seconds held against seconds, which they change; kernels in *.cu, which run on the processor in tests, and what takes longest only by test-long.
SLOW := test_scale test_ref test_remat test_place test_prop test_chunk_ranks test_fx_mesh test_remat_graph test_estimate test_cuda test_cuda_fused test_cuda_memory test_lt_cuda test_simt test_spmd_ref test_rank_plan test_split test_gathers test_rank_files test_ranks_run test_ranks_staged
SANITIZED := place.sh # scripts
QUICK = $(filter-out $(SLOW),$(notdir $(TESTS)))
test:
	tools/deps.sh test
	tools/layers.sh
	$(Q)$(MAKE) $(JOBS) all tests
	tools/test.sh $(BUILD)
	$(Q)$(MAKE) sanitized

# What touches products, attention, limits, the library's memory and the fixtures, with oneDNN 3.x: the system's where
# that is one, else wheels of PyPI (3.2).
WITH_ONEDNN := test_op test_matmul test_onednn test_workspace test_flash_tile test_known test_ref test_alloc test_api \
               test_api_run test_machine test_way
test-onednn3:
	tools/deps.sh onednn3
	tools/onednn3.sh $(BUILD)/onednn3
	$(Q)$(MAKE) $(JOBS) CUDA_HOME= ONEDNN=$$(cat $(BUILD)/onednn3/where) BUILD=$(BUILD)/onednn3 \
	    $(BUILD)/onednn3/tenon $(WITH_ONEDNN:%=$(BUILD)/onednn3/tests/%)
	tools/test.sh $(BUILD)/onednn3 bf16.sh $(WITH_ONEDNN)

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -DTN_SANITIZE
sanitized:
	$(Q)$(MAKE) $(JOBS) CUDA_HOME= BUILD=$(BUILD)/sanitized OPT="-O1 -g1" EXTRA="$(EXTRA) $(SANITIZE)" \
	    $(QUICK:%=$(BUILD)/sanitized/tests/%) $(BUILD)/sanitized/tenon \
	    $(patsubst $(BUILD)/%,$(BUILD)/sanitized/%,$(MODULES) $(MPI_TESTS))
	TN_QUICK=1 tools/test.sh $(BUILD)/sanitized $(SANITIZED) $(QUICK)

# Warnings are errors for both compilers; the tables are aligned by hand.
STYLED := $(wildcard src/*/*.[ch] src/*/*.cu src/*/*.cuh include/*.h tests/*.[ch] tests/*.cu tests/example/*.c tests/mpi/*.c \
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

# libFuzzer on every tests/fuzz_*.c (or FUZZ="fuzz_tn ..."), each seeded with the files of its folder in
# SEEDS; FUZZ_SEC seconds each.
FUZZ_SEC ?= 60
FUZZ ?= $(patsubst tests/%.c,%,$(wildcard tests/fuzz_*.c))
SEEDS := fuzz_tn:tests/ir fuzz_tokenizer:tests/tokenizer fuzz_state:tests/state \
         fuzz_config:tests/seeds/config fuzz_safetensors:tests/seeds/safetensors fuzz_fx:tests/fx/text \
         fuzz_place:tests/seeds/place fuzz_machine:tests/seeds/machine
fuzz:
	$(Q)$(MAKE) CC=clang BUILD=$(BUILD)/fuzz OPT="-O1 -g1 -Wno-pass-failed" \
	    EXTRA="$(EXTRA) $(SANITIZE) -fsanitize=fuzzer-no-link" $(FUZZ:%=$(BUILD)/fuzz/%)
	$(Q)for name in $(FUZZ); do \
	    mkdir -p $(BUILD)/fuzz/corpus/$$name && \
	    $(BUILD)/fuzz/$$name -max_total_time=$(FUZZ_SEC) -timeout=10 -rss_limit_mb=1024 \
	        -artifact_prefix=$(BUILD)/fuzz/ $(BUILD)/fuzz/corpus/$$name \
	        $$(printf '%s\n' $(SEEDS) | sed -n "s/^$$name://p") || exit; \
	done
$(BUILD)/fuzz_%: $(BUILD)/tests/fuzz_%.o $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) -fsanitize=fuzzer $^ -o $@ $(LDLIBS)

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

# Writes the expected part of tests/pass anew; git shows what that changes.
bless: $(BUILD)/tests/test_pass
	$< bless

format:
	clang-format -i $(STYLED)

# Families of placement instances: build/bench/place.
$(BUILD)/bench/%: $(BUILD)/bench/%.o $(BUILD)/tests/place_make.o $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)

# Time products and attention on a GPU; they have src/op/matmul_cuda.c and flash_attention_backward.cu
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

-include $(OBJ:.o=.d) $(MODULES:.so=.d) $(CUDA:.o=.d) $(SIMT:.o=.d) $(BUILD)/simt/src/exec/memory.d $(BUILD)/simt/tests/simt_try.d $(TESTS:=.d) $(TEST_HELP:.o=.d) $(wildcard $(BUILD)/bench/*.d)
.PHONY: all bench deps demo install uninstall tests test test-long test-onednn3 race sanitized lint bless fuzz format clean \
	oracle-tokenizer oracle-models oracle-finetune test-torch
