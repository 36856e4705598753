# How the test programs are built, and the targets that run them. Read by the Makefile.

# The kernels of ops, and src/cuda/memory.cu, for the processor (tests/shared/simt.h). Functions of two files may have one name, as for
# a GPU: all but the lists of kernels becomes local.
SIMT := $(patsubst %.cu,$(BUILD)/simt/%.o,$(wildcard src/cuda/*.cu)) $(BUILD)/src/cuda/kernels_cuda.c.o
SIMTFLAGS := -std=c++20 -O1 -g1 -Wall -Wno-unknown-pragmas -fno-exceptions -fno-rtti -fno-threadsafe-statics \
             -fno-gnu-unique -ffp-contract=off -DTN_SIMT -include tests/shared/simt.h -Iinclude $(EXTRA)
$(BUILD)/simt/%.o: %.cu
	$(call show,CXX)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(SIMTFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -x c++ -c $< -o $@.all
	$(Q)$(LD) -r --force-group-allocation $@.all -o $@.one
	$(Q)$(OBJCOPY) -w --keep-global-symbol='cuda_*' $@.one $@
	$(Q)rm -f $@.all $@.one
$(BUILD)/tests/test_cuda_memory: $(SIMT) $(BUILD)/tests/shared/fused_made.o $(BUILD)/simt/src/cuda/memory.o
$(BUILD)/tests/test_cuda_update: $(SIMT) $(BUILD)/tests/shared/fused_made.o
$(BUILD)/tests/test_device_cuda: $(SIMT) $(BUILD)/tests/shared/fused_made.o $(BUILD)/simt/src/cuda/memory.o
$(BUILD)/tests/test_cuda: $(SIMT) $(BUILD)/tests/shared/fused_made.o
$(BUILD)/tests/test_simt: $(BUILD)/simt/tests/shared/simt_try.o

# Prints the texts of bodies that it then has compiled in.
FUSED_TEST := $(addprefix $(BUILD)/tests/,programs/test_cuda_fused.o help.a) $(LIB) $(SIMT)
$(BUILD)/tests/fused_texts: $(FUSED_TEST)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)
$(BUILD)/simt/fused_texts.cu: $(BUILD)/tests/fused_texts
	$(call show,GEN)
	$(Q)$< texts >$@
$(BUILD)/simt/fused_texts.o: $(BUILD)/simt/fused_texts.cu $(patsubst %,src/cuda/%.cuh,$(FUSED_HEADERS))
	$(call show,CXX)
	$(Q)$(CXX) $(SIMTFLAGS) -fno-strict-aliasing -Isrc/cuda -x c++ -c $< -o $@
$(BUILD)/tests/test_cuda_fused: $(SIMT) $(BUILD)/simt/fused_texts.o

# Every tests/programs/test_*.c is a program that ends with "N passed, N failed" and a matching exit code. From
# tests/shared each takes what it uses. Of the library objects, not the archive: the op
# table's rows may be weak.
TESTS := $(patsubst tests/programs/%.c,$(BUILD)/tests/%,$(filter-out $(if $(CUDA_HOME),,%_cuda.c),$(wildcard tests/programs/test_*.c)))
TEST_HELP := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %_cuda.c,$(wildcard tests/shared/*.c)))
# Programs for mpirun, and the modules with short messages cut as only long ones are.
MPI_TESTS := $(addprefix $(BUILD)/tests/mpi/,direct jobs) $(MODULES:$(BUILD)/%=$(BUILD)/tests/mpi/%)
tests: $(TESTS) $(BUILD)/tests/fused_texts $(BUILD)/tests/export_cases $(MPI_TESTS) $(if $(CUDA_HOME),$(addprefix $(BUILD)/tests/,gpu_op gpu_ref nvrtc))
$(BUILD)/tests/help.a: $(TEST_HELP)
	$(call show,AR)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/tests/%: $(BUILD)/tests/programs/%.o $(BUILD)/tests/help.a $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)
$(BUILD)/tests/mpi/%: $(BUILD)/tests/mpi/%.o $(BUILD)/tests/help.a $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS)
.SECONDARY: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/programs/*.c tests/mpi/*.c))

$(BUILD)/tests/mpi/%.so: MPI_CUT := -DCHUNK=1000
$(BUILD)/tests/mpi/tenon-mpi-%.so: src/comm/transport_mpi.c
	$(call link_module,$*)

# Compiles texts for a GPU without one.
$(BUILD)/tests/nvrtc: $(BUILD)/tests/programs/nvrtc_cuda.c.o $(BUILD)/src/cuda/fused_cuda.c.o $(BUILD)/tests/help.a $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)

# Have src/cuda/matmul_cuda.c and src/exec/device_cuda.c in themselves, and what stands in for CUDA's libraries.
$(BUILD)/tests/programs/test_lt_cuda.o $(BUILD)/tests/programs/test_device_cuda.o: CFLAGS += -I$(CUDA_HOME)/include

# The driver of GPUs, and what stands in for CUDA's runtime, its kernels but that of ranks' sums, and for NCCL.
$(BUILD)/tests/test_gpu_ranks_cuda: $(BUILD)/src/exec/device_cuda.c.o $(BUILD)/tests/shared/runtime_cuda.c.o \
    $(addprefix $(BUILD)/,tests/shared/nccl_cuda.c.o tests/shared/simt.o simt/src/cuda/collective.o)

# The same as test_cuda and test_ref, on a GPU.
$(BUILD)/tests/gpu_op: $(BUILD)/tests/programs/gpu_op_cuda.c.o
$(BUILD)/tests/gpu_ref: $(BUILD)/tests/programs/test_ref.o
$(BUILD)/tests/gpu_op $(BUILD)/tests/gpu_ref: $(BUILD)/tests/help.a $(LIB) $(CUDA)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) $(filter-out %/help.a,$^) $(BUILD)/tests/help.a -o $@ $(LDLIBS) $(CUDA_LIBS)

# Every plan that a test makes is checked (tests/shared/check_plans.c), but where allocations are counted or made
# to fail, where planning is timed, and where rough plans, of which addresses are left out, are chosen among.
UNCHECKED := test_alloc test_decide test_decide_cbc test_decide_enum test_decide_graph test_fault test_meshes \
    test_scale test_tune
$(filter-out $(UNCHECKED:%=$(BUILD)/tests/%),$(TESTS)): LDLIBS += -Wl,-u,__wrap_plan_make \
    -Wl,--wrap=plan_make -Wl,--wrap=plan_ordered

# Solves integer programs by CBC, where that is there, else says that it does not.
CBC := $(wildcard /usr/include/coin/Cbc_C_Interface.h)
ifneq ($(CBC),)
$(BUILD)/tests/programs/test_decide_cbc.o $(BUILD)/tests/programs/test_pick_cbc.o: CFLAGS += -DTN_CBC
$(BUILD)/tests/test_decide_cbc $(BUILD)/tests/test_pick_cbc: LDLIBS += -lCbcSolver -lCbc
endif

# Where one rank's calls fail.
$(BUILD)/tests/test_rank_files: LDLIBS += $(foreach f,pwrite pread fsync rename,-Wl,--wrap=$(f))
$(BUILD)/tests/test_schedule: $(BUILD)/src/train/schedule.o
$(BUILD)/tests/test_peak: $(BUILD)/src/train/peak.o
$(BUILD)/tests/test_signals: $(BUILD)/src/train/interrupt.o
$(BUILD)/tests/test_evaluate: $(addprefix $(BUILD)/src/train/,evaluate.o batch.o line.o port.o peak.o)
$(BUILD)/tests/test_train_ranks: $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/train/*.c))
$(BUILD)/tests/test_train_ranks: LDLIBS += -Wl,--wrap=peak_new -Wl,--wrap=tn_program_save

# Counts calls of these from the objects linked here.
ALLOCATES := malloc calloc realloc aligned_alloc posix_memalign strdup strndup fopen mmap
$(BUILD)/tests/test_alloc: LDLIBS += $(ALLOCATES:%=-Wl,--wrap=%)

# Has AMX, in software where the processor does not.
$(BUILD)/tests/test_op: LDLIBS += -Wl,-u,__wrap_amx_has -Wl,--wrap=amx_has

# Counts the elements that references get and set.
$(BUILD)/tests/test_work: LDLIBS += $(foreach f,get int set,-Wl,--wrap=tensor_$(f))

# Counts searches for addresses.
$(BUILD)/tests/test_share: LDLIBS += -Wl,--wrap=place_on

# Counts what oneDNN is asked to make.
$(BUILD)/tests/test_workspace: LDLIBS += \
    $(foreach f,engine stream primitive primitive_desc matmul_primitive_desc memory,-Wl,--wrap=dnnl_$(f)_create)

# Refuses threads.
$(BUILD)/tests/test_device: LDLIBS += -Wl,--wrap=pthread_create

# What reads the state of a run that goes on.
RESUMES := $(filter $(BUILD)/src/train/% %/cli/options.o %/cli/option_table.o %/cli/foreign_options.o %/cli/output_is_input.o %/cli/resume.o %/cli/write_text.o,$(CLI))
$(BUILD)/tests/test_corrupt: $(RESUMES)
$(BUILD)/fuzz_events: $(BUILD)/src/train/event_record.o
$(BUILD)/fuzz_state: $(BUILD)/tests/shared/state_case.o $(RESUMES)

# Calls the commands themselves, in the place of the program's main.
$(BUILD)/tests/test_options: $(CLI)
$(BUILD)/tests/test_options: LDLIBS += -Wl,--wrap=main

# Is the whole program, in whose place its main runs; under sanitizers malloc cannot be its own.
$(BUILD)/tests/test_fault: $(CLI)
$(BUILD)/tests/test_fault: LDLIBS += -Wl,--wrap=main -Wl,--wrap=peak_new \
    $(if $(findstring TN_SANITIZE,$(EXTRA)),$(patsubst %,-Xlinker --wrap=%,$(filter-out fopen,$(ALLOCATES))))

# Kills, resumes, threads, 20,000 random graphs, 500 on the emulated device: what takes minutes.
test-long: all race
	$(Q)$(MAKE) sanitized SLOW="test_ref test_spmd_ref" SANITIZED="cli.sh mpi.sh place.sh"
	TN_LONG=1 tools/test.sh $(BUILD)/sanitized test_op
	TN_LONG=1 tools/test.sh $(BUILD) shard_auto.sh meshes.sh budget.sh cli.sh decide.sh emulated.sh finetune.sh fit.sh isa.sh mpi.sh nvrtc.sh ranks.sh ranks_kill.sh overlap.sh resume.sh signals.sh test_chunk test_corrupt test_cuda test_cut test_decide test_ladder test_large test_emulated test_fault test_flow test_norm test_offload test_place test_prop test_ranks_run test_reshard test_ring test_spmd test_shard_models test_shard_limits test_short test_spmd_bits test_spmd_ref test_remat test_rank_files test_meshes test_bound test_decide_cbc test_decide_enum test_pick test_pick_cbc chunk_choose.sh test_op test_order test_remat_graph

# What runs in several threads of the caller, ranks, and the thread that reads data, under ThreadSanitizer. It does
# not know OpenMP's own, so that kernels run in one thread; oneDNN has OpenMP built in.
RACES := test_ring test_slices test_concurrent test_data_batch test_device test_emulated test_comm test_transport test_ranks_api test_train_ranks \
         test_ranks_run test_ranks_staged test_rank_files test_share
race:
	tools/deps.sh lint
	$(Q)$(MAKE) $(JOBS) CC=clang BUILD=$(BUILD)/race OPT="-O1 -g1" OPENMP= \
	    EXTRA="$(EXTRA) -fsanitize=thread -DTN_SANITIZE" $(RACES:%=$(BUILD)/race/tests/%)
	OMP_NUM_THREADS=1 TN_QUICK=1 tools/test.sh $(BUILD)/race $(RACES)

# Everything, and then under sanitizers (with TN_QUICK: fewer random graphs, say) all but
#  - tests that hold seconds against seconds, which sanitizers change;
#  - tests of kernels for GPUs (*.cu), which run on the processor here;
#  - the longest tests, which only test-long runs so.
# What is undefined traps there: words for it make objects three times as large, which take twice as long to compile. Of
# a trap AddressSanitizer shows the line; `make sanitized` in a BUILD of its own, as test-long has it, says the words.
SLOW := test_shard_models test_shard_limits test_decide test_compile test_overlap test_meshes test_short test_shard_found test_shard_imported test_ring test_bound test_decide_cbc test_pick_cbc test_decide_enum test_scale test_ref test_remat test_place test_prop test_chunk_ranks test_fx_mesh test_remat_graph test_estimate test_cuda test_cuda_fused test_cuda_memory test_cuda_update test_device_cuda test_lt_cuda test_gpu_ranks_cuda test_simt test_spmd_ref test_rank_plan test_split test_gathers test_rank_files test_ranks_run test_ranks_staged test_large test_vmath test_onednn test_step_bound
SANITIZED := place.sh # scripts
QUICK = $(filter-out $(SLOW),$(notdir $(TESTS)))
test:
	tools/deps.sh test
	tools/layers.sh
	$(Q)$(MAKE) $(JOBS) all tests
	tools/test.sh $(BUILD)
	$(Q)$(MAKE) sanitized SANITIZE="$(SANITIZE) -fsanitize-undefined-trap-on-error"

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

# -Og compiles in two thirds of the time of -O1, and its tests take a twentieth more. Warnings are told without sanitizers.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -DTN_SANITIZE
sanitized:
	$(Q)$(MAKE) $(JOBS) CUDA_HOME= BUILD=$(BUILD)/sanitized OPT="-Og -g1 -w" EXTRA="$(EXTRA) $(SANITIZE)" \
	    $(QUICK:%=$(BUILD)/sanitized/tests/%) $(BUILD)/sanitized/tenon \
	    $(patsubst $(BUILD)/%,$(BUILD)/sanitized/%,$(MODULES) $(MPI_TESTS))
	ASAN_OPTIONS=handle_sigill=1:$$ASAN_OPTIONS TN_QUICK=1 tools/test.sh $(BUILD)/sanitized $(SANITIZED) $(QUICK)

# libFuzzer on every tests/fuzz/*.c (or FUZZ="fuzz_tn ..."), each seeded with the files of its folder in
# SEEDS; FUZZ_SEC seconds each.
FUZZ_SEC ?= 60
FUZZ ?= $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
SEEDS := fuzz_tn:tests/ir fuzz_events:tests/seeds/events fuzz_tokenizer:tests/tokenizer fuzz_state:tests/state \
         fuzz_config:tests/seeds/config fuzz_lora:tests/seeds/lora fuzz_safetensors:tests/seeds/safetensors fuzz_fx:tests/fx/text \
         fuzz_jinja:tests/chat fuzz_record:tests/seeds/record fuzz_place:tests/seeds/place fuzz_machine:tests/seeds/machine fuzz_pick:tests/seeds/pick
fuzz:
	$(Q)$(MAKE) CC=clang BUILD=$(BUILD)/fuzz OPT="-O1 -g1 -Wno-pass-failed" \
	    EXTRA="$(EXTRA) $(SANITIZE) -fsanitize=fuzzer-no-link" $(FUZZ:%=$(BUILD)/fuzz/%)
	$(Q)for name in $(FUZZ); do \
	    mkdir -p $(BUILD)/fuzz/corpus/$$name && \
	    $(BUILD)/fuzz/$$name -max_total_time=$(FUZZ_SEC) -timeout=10 -rss_limit_mb=1024 \
	        -artifact_prefix=$(BUILD)/fuzz/ $(BUILD)/fuzz/corpus/$$name \
	        $$(printf '%s\n' $(SEEDS) | sed -n "s/^$$name://p") || exit; \
	done
$(BUILD)/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(LIB)
	$(call show,LD)
	$(Q)$(CC) $(CFLAGS) -fsanitize=fuzzer $^ -o $@ $(LDLIBS)

