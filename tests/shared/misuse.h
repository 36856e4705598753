/* misuse: the functions of tenon.h and the kinds of their arguments, for test_misuse.c. A new
 * function gets a line among the calls and one in the table. */
#ifndef TENON_TEST_MISUSE_H
#define TENON_TEST_MISUSE_H

#include "../../include/tenon.h"

#include <limits.h>
#include <stdbool.h>

typedef union Arg {
    void *p;
    int64_t i;
    double d;
} Arg;

/* Kinds of arguments, one letter for each argument of the header's:
 *   C G V M D K P X N B H J  context, graph, value, model, data, tokenizer, plan, program,
 * generator, buffers, sharding, chat Q T   an array of two plans, of two texts s o p r   a text;
 * options; another pointer; room for results n z   numbers from 1, from 0 on;  m c   counts of an
 * array, the same k   a step, unsigned, from 1 on;  b   0 or 1;  d   a part of 1;  i   any number
 *   0 .   NULL, 0, which are left so
 * Pointers are called with NULL, which is refused; so are numbers out of range. */
typedef struct Row {
    const char *name, *kinds;
    int64_t (*call)(const Arg *a); /* a code, unless it is quiet */
    bool quiet;
} Row;

#define CALL(name, ...)                              \
    static int64_t call_##name(const Arg *a)         \
    {                                                \
        (void)a;                                     \
        return (int64_t)(intptr_t)name(__VA_ARGS__); \
    }
#define CALL_VOID(name, ...)                 \
    static int64_t call_##name(const Arg *a) \
    {                                        \
        (void)a;                             \
        name(__VA_ARGS__);                   \
        return 0;                            \
    }
#define P(k) a[k].p
#define I(k) a[k].i
#define W(k) ((int)(a[k].i > INT_MAX ? INT_MAX : a[k].i < INT_MIN ? INT_MIN : a[k].i))

CALL(tn_ops, P(0), P(1), P(2), P(3))
CALL(tn_passes, P(0), P(1))
CALL(tn_passes_have, P(0), P(1))
CALL(tn_nearest, P(0), P(1), W(2))
CALL(tn_bytes, P(0))
CALL(tn_count_text, I(0), P(1), P(2), (size_t)I(3))
CALL(tn_bytes_text, I(0), P(1), P(2), (size_t)I(3))
CALL(tn_folder_make, P(0), P(1))
CALL(tn_error, P(0))
CALL(tn_context_fail, P(0), W(1), "%s", "text")
CALL_VOID(tn_threads, W(0))
CALL(tn_join, P(0), a[1].d)
CALL(tn_ranks_run, W(0), a[1].d, NULL, P(3))
CALL(tn_rank, P(0))
CALL(tn_ranks, P(0))
CALL(tn_ranks_here, P(0))
CALL(tn_agree, P(0), P(1), W(2))
CALL(tn_agree_code, P(0), W(1))
CALL(tn_share, P(0), P(1), (size_t)I(2))
CALL(tn_gather, P(0), P(1), (size_t)I(2), P(3))
CALL(tn_machine_share, P(0), P(1), P(2))
CALL(tn_data_part, P(0), I(1), P(2))
CALL(tn_plan_rows, P(0), P(1), P(2))
CALL_VOID(tn_ranks_end, P(0), W(1))
CALL_VOID(tn_ranks_stop, P(0), P(1))
CALL(tn_ranks_count, P(0), P(1), P(2))
CALL_VOID(tn_context_free, P(0))
CALL(tn_graph_parse, P(0), P(1), P(2), P(3))
CALL(tn_graph_read, P(0), P(1), P(2))
CALL(tn_graph_print, P(0), P(1))
CALL(tn_graph_dot, P(0), P(1))
CALL(tn_graph_split, P(0), W(1), P(2))
CALL(tn_graph_diff, P(0), P(1), P(2))
CALL(tn_graph_mesh, P(0), P(1))
CALL(tn_graph_export_fx, P(0), P(1))
CALL(tn_graph_ranks, P(0))
CALL(tn_graph_compare, P(0), P(1), (uint64_t)I(2), P(3), P(4))
CALL(tn_graph_import_fx, P(0), P(1), P(2), P(3), P(4))
CALL(tn_fx_unknown, P(0), P(1), P(2))
CALL_VOID(tn_graph_free, P(0))
CALL(tn_graph_passes_have, P(0), P(1), P(2), P(3))
CALL(tn_graph_passes, P(0), P(1), P(2), NULL, P(4))
CALL(tn_graph_curve, P(0), P(1), P(2), W(3), P(4), NULL, P(6))
CALL(tn_curve_page, P(0), P(1), W(2), P(3), P(4), P(5))
CALL(tn_graph_new, P(0), P(1), P(2))
CALL(tn_graph_input, P(0), P(1), P(2), W(3), P(4), P(5), P(6), P(7))
CALL(tn_graph_node, P(0), P(1), W(2), P(3), P(4), P(5), P(6), W(7), P(8))
CALL(tn_graph_output, P(0), P(1), P(2), P(3))
CALL(tn_model_open, P(0), P(1), P(2))
CALL(tn_model_open_graph, P(0), P(1), P(2), P(3))
CALL(tn_model_graph_batch, P(0), P(1), P(2), P(3))
CALL(tn_model_count, P(0))
CALL(tn_model_dropout, P(0), P(1))
CALL(tn_model_dtype, P(0))
CALL_VOID(tn_model_shape, P(0), P(1), P(2))
CALL(tn_model_folder, P(0))
CALL(tn_model_file, P(0), W(1))
CALL(tn_file_hash, P(0), P(1), P(2), P(3))
CALL(tn_crc32c, P(0), I(1))
CALL(tn_model_tokenizer, P(0), P(1))
CALL(tn_model_lora, P(0), P(1))
CALL(tn_model_adapter, P(0), P(1))
CALL(tn_model_trained, P(0))
CALL(tn_model_base, P(0))
CALL(tn_model_merge, P(0), P(1), P(2), I(3), P(4))
CALL(tn_model_end, P(0), W(1), P(2))
CALL(tn_model_graph, P(0), I(1), I(2), P(3), P(4))
CALL(tn_model_logits, P(0), I(1), I(2), P(3))
CALL(tn_model_decode, P(0), I(1), I(2), P(3))
CALL(tn_model_close_files, P(0))
CALL_VOID(tn_model_free, P(0))
CALL(tn_data_open, P(0), W(1), P(2), P(3), a[4].d, I(5), P(6))
CALL_VOID(tn_data_size, P(0), P(1), P(2), P(3))
CALL(tn_data_file, P(0), W(1), P(2), P(3), P(4))
CALL(tn_data_document, P(0), I(1))
CALL(tn_data_windows, P(0), W(1), I(2), P(3), P(4))
CALL(tn_data_batch, P(0), (uint64_t)I(1), (uint32_t)I(2), I(3), I(4), P(5), P(6))
CALL(tn_data_read_ahead, P(0), (uint64_t)I(1), (uint32_t)I(2), I(3), I(4))
CALL(tn_data_val, P(0), I(1), I(2), I(3), I(4), P(5), P(6), P(7))
CALL(tn_data_pack, P(0), I(1))
CALL(tn_data_shuffle, P(0), W(1))
CALL(tn_model_resize, P(0), I(1))
CALL(tn_data_mix, P(0), W(1), P(2), P(3), P(4))
CALL(tn_data_packed, P(0), (uint64_t)I(1), (uint32_t)I(2), I(3), I(4), P(5), P(6), P(7))
CALL(tn_data_val_packed, P(0), I(1), I(2), I(3), I(4), P(5), P(6), P(7), P(8))
CALL(tn_batch_read, P(0), P(1), I(2), I(3), P(4), P(5))
CALL(tn_batch_shape, P(0), P(1), P(2), P(3))
CALL_VOID(tn_data_free, P(0))
CALL(tn_tokenizer_open, P(0), P(1), P(2))
CALL(tn_tokenizer_limit, P(0))
CALL(tn_tokenizer_find, P(0), P(1))
CALL(tn_tokenizer_bytes, P(0), I(1), P(2))
CALL(tn_tokenizer_encode, P(0), P(1), (size_t)I(2), W(3), P(4), P(5))
CALL(tn_tokenizer_decode, P(0), I(1), P(2), P(3), P(4))
CALL(tn_tokenizer_decode_begin, P(0), I(1), P(2), P(3), P(4))
CALL(tn_tokenizer_decode_next, P(0), I(1), P(2), P(3), P(4))
CALL(tn_data_width, P(0))
CALL(tn_data_not_text, P(0))
CALL(tn_data_check_text, P(0))
CALL(tn_data_tokenize, P(0), P(1), P(2), P(3), P(4))
CALL(tn_data_holds, P(0), P(1))
CALL(tn_data_row_counts, P(0), P(1))
CALL(tn_chat_open, P(0), P(1), P(2))
CALL(tn_chat_text, P(0), P(1), (size_t)I(2), W(3), P(4), P(5), P(6), P(7))
CALL_VOID(tn_chat_free, P(0))
CALL(tn_model_stops, P(0), W(1), P(2))
CALL(tn_tokenize, P(0), W(1), P(2), P(3), P(4), P(5), P(6))
CALL(tn_detokenize, P(0), P(1), P(2), P(3), P(4))
CALL_VOID(tn_tokenizer_free, P(0))
CALL(tn_plan_new, P(0), P(1), W(2), P(3))
CALL(tn_memory_free, P(0), P(1), P(2), P(3))
CALL(tn_error_misfit, P(0), P(1))
CALL(tn_compile, P(0), P(1), P(2), P(3))
CALL_VOID(tn_compiled_free, P(0))
CALL(tn_mesh_search, P(0), P(1), P(2), P(3))
CALL(tn_plan_text, P(0), W(1), P(2))
CALL(tn_plan_decided, P(0), P(1))
CALL(tn_plan_trace, P(0), P(1))
CALL(tn_plan_export_json, P(0), P(1))
CALL(tn_plan_explain, P(0), P(1))
CALL(tn_plan_json, P(0), W(1), P(2))
CALL(tn_plan_compare, P(0), P(1), W(2), P(3))
CALL(tn_plan_page, P(0), P(1), W(2), P(3), P(4), P(5))
CALL_VOID(tn_plan_bytes, P(0), P(1), P(2), P(3))
CALL(tn_plan_handles, P(0))
CALL(tn_plan_host, P(0))
CALL(tn_plan_host_persistent, P(0))
CALL_VOID(tn_plan_flops, P(0), P(1), P(2))
CALL_VOID(tn_plan_sec, P(0), P(1), P(2))
CALL(tn_plan_bucket, P(0), P(1), P(2), P(3))
CALL(tn_backend_is_gpu, P(0))
CALL(tn_machine_here, P(0), P(1), P(2))
CALL(tn_machine_hash, P(0), P(1), P(2), P(3))
CALL(tn_plan_machine, P(0), P(1))
CALL(tn_plan_products, P(0), W(1), P(2))
CALL_VOID(tn_plan_free, P(0))
CALL(tn_program_new, P(0), P(1), P(2))
CALL(tn_program_share, P(0), P(1), P(2))
CALL(tn_program_port, P(0), P(1), P(2))
CALL(tn_program_write, P(0), P(1), P(2), I(3))
CALL(tn_program_read, P(0), P(1), P(2), I(3))
CALL(tn_program_data, P(0), P(1), P(2), P(3))
CALL(tn_program_bind, P(0), P(1), P(2))
CALL(tn_program_load, P(0), P(1), P(2))
CALL(tn_program_save, P(0), P(1), P(2), P(3))
CALL(tn_plan_save_bytes, P(0), P(1), P(2), I(3), P(4), P(5))
CALL(tn_program_unsound, P(0), P(1))
CALL(tn_program_restore, P(0), P(1))
CALL(tn_checkpoint_check, P(0), P(1))
CALL(tn_checkpoint_replaceable, P(0), P(1))
CALL(tn_checkpoint_remove, P(0), P(1))
CALL(tn_checkpoint_clean, P(0), P(1))
CALL(tn_checkpoint_link, P(0), P(1), P(2))
CALL(tn_program_read_file, P(0), P(1))
CALL(tn_program_write_file, P(0), P(1), P(2))
CALL(tn_program_run, P(0))
CALL(tn_program_error, P(0))
CALL(tn_program_check, P(0), W(1))
CALL(tn_program_fault, P(0))
CALL(tn_program_fault_at, P(0))
CALL_VOID(tn_program_fill, P(0), W(1))
CALL(tn_program_high, P(0), W(1))
CALL(tn_program_high_host, P(0), W(1))
CALL(tn_program_used, P(0))
CALL(tn_program_trace, P(0), I(1))
CALL_VOID(tn_program_trace_next, P(0), I(1))
CALL(tn_program_trace_write, P(0), P(1))
CALL(tn_program_trace_cpu, P(0), I(1))
CALL(tn_program_calls, P(0), P(1), P(2))
CALL(tn_program_ways, P(0), P(1), a[2].d, W(3), W(4), P(5), P(6))
CALL_VOID(tn_program_random, P(0), (uint64_t)I(1))
CALL(tn_limit_product, P(0), P(1), W(2), P(3))
CALL(tn_limit_streams, P(0), W(1), P(2))
CALL(tn_program_product, P(0), P(1), W(2), P(3))
CALL(tn_program_streams, P(0), W(1), P(2))
CALL(tn_tune, P(0), P(1), W(2), P(3))
CALL(tn_tune_path, P(0), P(1))
CALL(tn_tune_path_for, P(0), P(1), P(2))
CALL_VOID(tn_program_free, P(0))
CALL(tn_generator_new, P(0), I(1), P(2), P(3))
CALL_VOID(tn_generator_bytes, P(0), P(1), P(2))
CALL(tn_generator_handles, P(0))
CALL(tn_generator_start, P(0), P(1))
CALL_VOID(tn_generator_reset, P(0))
CALL(tn_generator_feed, P(0), I(1), P(2))
CALL(tn_generator_logits, P(0), P(1))
CALL(tn_generator_next, P(0), P(1), P(2))
CALL_VOID(tn_generator_free, P(0))
CALL(tn_place, P(0), I(1), P(2), I(3), I(4), P(5))
CALL(tn_place_check, P(0), I(1), P(2), P(3))
CALL(tn_buffers_read, P(0), P(1), NULL, P(3), P(4))
CALL(tn_buffers_list, P(0), P(1), P(2))
CALL(tn_buffers_check, P(0), P(1))
CALL(tn_buffers_write, P(0), P(1))
CALL_VOID(tn_buffers_free, P(0))
CALL(tn_sharding_read, P(0), P(1), P(2))
CALL(tn_sharding_solve, P(0), I(1), NULL, P(3), P(4))
CALL(tn_sharding_list, P(0), P(1), P(2))
CALL(tn_sharding_write, P(0), P(1))
CALL_VOID(tn_sharding_free, P(0))

/* clang-format off */
#define ROW(name, kinds)   {#name, kinds, call_##name, false}
#define QUIET(name, kinds) {#name, kinds, call_##name, true}
static const Row rows[] = {
    ROW(tn_ops, "C00r"),                 ROW(tn_passes, "Cr"),
    QUIET(tn_passes_have, "00"),
    QUIET(tn_nearest, "00i"),            QUIET(tn_bytes, "0"), QUIET(tn_bytes_text, "i0r."),
    QUIET(tn_count_text, "i0r."),
    ROW(tn_folder_make, "Cs"),           QUIET(tn_error, "0"),
    QUIET(tn_context_fail, "0i.."),      QUIET(tn_threads, "i"),
    ROW(tn_join, "C."),                  QUIET(tn_ranks_run, "md00"),
    QUIET(tn_rank, "C"),                 QUIET(tn_ranks, "C"),
    QUIET(tn_ranks_here, "C"),           ROW(tn_agree, "Crn"),
    ROW(tn_agree_code, "C."),            ROW(tn_share, "Crm"),
    ROW(tn_gather, "Cpmr"),              QUIET(tn_ranks_end, "Ci"),
    QUIET(tn_ranks_stop, "C0"),
    ROW(tn_ranks_count, "Crr"),          ROW(tn_machine_share, "C0r"),
    ROW(tn_data_part, "Dc0"),            ROW(tn_plan_rows, "Prr"),
    QUIET(tn_context_free, "0"),         ROW(tn_graph_parse, "Cssr"),
    ROW(tn_graph_read, "Csr"),           ROW(tn_graph_print, "Gr"),
    ROW(tn_graph_split, "Gbr"), ROW(tn_graph_diff, "GGr"),          ROW(tn_graph_ranks, "G"),
    ROW(tn_graph_dot, "Gr"),             ROW(tn_graph_mesh, "Gr"),
    ROW(tn_graph_export_fx, "Gr"),
    ROW(tn_graph_compare, "GGirr"),      ROW(tn_graph_import_fx, "Csprr"),
    ROW(tn_fx_unknown, "Csr"),           QUIET(tn_graph_free, "0"),
    ROW(tn_graph_passes, "Gso00"),       ROW(tn_graph_passes_have, "Gssr"),
    ROW(tn_graph_curve, "Gsonr00"),      ROW(tn_curve_page, "Cpnssr"),
    ROW(tn_graph_new, "Csr"),            ROW(tn_graph_input, "Gssi000r"),
    ROW(tn_graph_node, "Gsc0000c0"),     ROW(tn_graph_output, "GV00"),
    ROW(tn_model_open, "Csr"), ROW(tn_model_open_graph, "Cssr"), QUIET(tn_model_graph_batch, "Mrrr"),           QUIET(tn_model_count, "M"),
    QUIET(tn_model_shape, "Mrr"),        QUIET(tn_model_folder, "M"),
    QUIET(tn_model_file, "Mi"),          ROW(tn_file_hash, "Csrr"), QUIET(tn_crc32c, "0i"),
    ROW(tn_model_tokenizer, "Ms"),       QUIET(tn_model_end, "Mc0"),
    ROW(tn_model_lora, "Ms"),            ROW(tn_model_adapter, "Ms"),
    QUIET(tn_model_trained, "M"),        QUIET(tn_model_base, "M"),
    ROW(tn_model_merge, "Ms0zr"),
    ROW(tn_model_graph, "Mnnor"),        ROW(tn_model_logits, "Mnnr"),
    ROW(tn_model_decode, "Mnnr"),        QUIET(tn_model_free, "0"),
    ROW(tn_model_close_files, "M"),
    ROW(tn_data_open, "CmTsdzr"),        QUIET(tn_data_size, "Drrr"),
    QUIET(tn_data_file, "Dirrr"),        ROW(tn_data_document, "Di"),
    ROW(tn_data_windows, "Dbnrr"),       ROW(tn_data_batch, "Diknnrr"),
    ROW(tn_data_read_ahead, "D.knn"),    ROW(tn_data_val, "Dznnnrrr"),
    ROW(tn_data_mix, "C.0pr"),           ROW(tn_model_resize, "Mi"),
    ROW(tn_data_pack, "Dn"),             ROW(tn_data_packed, "Diknnrrr"),
    ROW(tn_data_val_packed, "Dznnnrrrr"), ROW(tn_data_shuffle, "Db"),
    ROW(tn_batch_read, "Csnnrr"),        ROW(tn_batch_shape, "Csrr"),
    QUIET(tn_data_free, "0"),            ROW(tn_tokenizer_open, "Csr"),
    QUIET(tn_tokenizer_limit, "K"),      QUIET(tn_tokenizer_find, "Ks"),
    ROW(tn_tokenizer_bytes, "Kzr"),
    ROW(tn_tokenizer_encode, "K0iirr"),  ROW(tn_tokenizer_decode, "Kc0rr"),
    ROW(tn_tokenize, "KmTsprr"),         ROW(tn_detokenize, "Ksspr"),
    QUIET(tn_tokenizer_free, "0"),       ROW(tn_plan_new, "Goir"),
    ROW(tn_memory_free, "Cor0"), QUIET(tn_error_misfit, "Cr"),        ROW(tn_compile, "Cpor"),
    QUIET(tn_compiled_free, "0"),        ROW(tn_mesh_search, "Cpor"),
    ROW(tn_plan_text, "Pir"),            ROW(tn_plan_explain, "Pr"),            ROW(tn_plan_decided, "Pr"),          ROW(tn_plan_bucket, "Prrr"),          ROW(tn_plan_trace, "Pr"),
    ROW(tn_plan_export_json, "Pr"),
    ROW(tn_plan_json, "Pir"),            ROW(tn_plan_compare, "QTir"),
    ROW(tn_plan_page, "QTissr"),         QUIET(tn_plan_bytes, "Prrr"),
    QUIET(tn_plan_handles, "P"),         QUIET(tn_generator_handles, "N"),
    QUIET(tn_plan_flops, "Prr"),         QUIET(tn_plan_products, "Pc0"),
    QUIET(tn_plan_free, "0"),            ROW(tn_program_new, "Por"),
    ROW(tn_program_share, "PXr"),        ROW(tn_program_data, "Xsr0"),
    ROW(tn_program_bind, "Xs0"),
    ROW(tn_program_load, "XMo"),         ROW(tn_program_save, "XMss"),
    ROW(tn_plan_save_bytes, "PMonrr"),   QUIET(tn_program_unsound, "Xr"),
    ROW(tn_program_restore, "Xs"),       ROW(tn_checkpoint_check, "Cs"),
    ROW(tn_checkpoint_replaceable, "Cs"), ROW(tn_checkpoint_remove, "Cs"),
    ROW(tn_checkpoint_link, "Css"),      ROW(tn_checkpoint_clean, "Cs"),      ROW(tn_program_port, "Xsr"),
    ROW(tn_program_write, "Xspi"),       ROW(tn_program_read, "Xsri"),
    ROW(tn_program_read_file, "Xs"),     ROW(tn_program_write_file, "Xss"),
    QUIET(tn_program_error, "0"),        ROW(tn_program_run, "X"),
    ROW(tn_program_check, "Xi"),         QUIET(tn_program_fault, "X"),
    QUIET(tn_program_fault_at, "X"),
    QUIET(tn_program_fill, "Xi"),        QUIET(tn_program_high, "Xi"),
        QUIET(tn_program_high_host, "Xi"), QUIET(tn_program_used, "X"),    QUIET(tn_plan_host, "P"),
        QUIET(tn_plan_host_persistent, "P"),
    ROW(tn_program_trace, "Xn"),         QUIET(tn_program_trace_next, "Xi"),
    ROW(tn_program_trace_write, "Xs"),   ROW(tn_program_trace_cpu, "Xn"),
    ROW(tn_program_calls, "Xrr"),        ROW(tn_program_ways, "Xp..zrr"),
    QUIET(tn_program_random, "Xi"),
    ROW(tn_limit_product, "Cpir"),       ROW(tn_limit_streams, "C.r"),
    ROW(tn_program_product, "Xpir"),     ROW(tn_program_streams, "X.r"),
    ROW(tn_tune, "C0n0"),                ROW(tn_tune_path, "Cr"),
    ROW(tn_tune_path_for, "Cor"),
    QUIET(tn_program_free, "0"),         ROW(tn_generator_new, "Mnor"),
    QUIET(tn_generator_bytes, "Nrr"),    ROW(tn_generator_start, "N0"),
    QUIET(tn_generator_reset, "N"),      ROW(tn_generator_feed, "Nc0"),
    ROW(tn_generator_logits, "Nr"),      ROW(tn_generator_next, "Npr"),
    QUIET(tn_generator_free, "0"),       ROW(tn_tokenizer_decode_begin, "Kc0rr"),
    ROW(tn_plan_machine, "Pr"),
    QUIET(tn_plan_sec, "Prr"), QUIET(tn_backend_is_gpu, "0"), ROW(tn_machine_here, "C00"), ROW(tn_machine_hash, "C00r"), QUIET(tn_model_dtype, "M"), QUIET(tn_model_dropout, "Mr"),
    ROW(tn_tokenizer_decode_next, "Kc0rr"), QUIET(tn_data_width, "D"),
    ROW(tn_data_check_text, "D"),         ROW(tn_data_holds, "Dr"),
    QUIET(tn_data_row_counts, "Dr"),     ROW(tn_chat_open, "Csr"),
    ROW(tn_chat_text, "Js.brrrr"),       QUIET(tn_chat_free, "0"),
    QUIET(tn_model_stops, "Mc0"),
    QUIET(tn_data_not_text, "D"),        ROW(tn_data_tokenize, "DKprr"),
    ROW(tn_place, "Cc0zzr"),             ROW(tn_place_check, "Cc0r"),
    ROW(tn_buffers_read, "Cs00r"),       ROW(tn_buffers_list, "Brr"),
    ROW(tn_buffers_check, "Br"),         ROW(tn_buffers_write, "Bs"),
    QUIET(tn_buffers_free, "0"),
    ROW(tn_sharding_read, "Csr"),        ROW(tn_sharding_solve, "Hz00r"),
    ROW(tn_sharding_list, "Hrr"),        ROW(tn_sharding_write, "Hs"),
    QUIET(tn_sharding_free, "0"),
};
/* clang-format on */

#endif
