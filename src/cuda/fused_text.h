/* Shared by the writer of a kernel's text of a body of `fused` (fused_text.c), its compiler
 * (fused_cuda.c) and its launch (fused.cu). */
#ifndef TENON_FUSED_TEXT_H
#define TENON_FUSED_TEXT_H

#include "../op/op.h"

/* A kernel `fused` in CUDA C++, whose arguments are the data of all operands, then of all results,
 * then Call.stop, fault and step, then the streams of random numbers. Nodes that differ in names
 * and streams have the same text. */
typedef struct FusedText {
    const char *text;
    int64_t blocks; /* 0: nothing to do */
    int threads;    /* of a block */
    int nstream;
    unsigned stream[FUSED_MOST];
} FusedText;

/* Whether the body of c's node has a text for tensors that lie as c's do, ... */
bool fused_text_accepts(const Call *c);
/* ... which is made in a. */
FusedText fused_text(Arena *a, const Call *c);

/* The text compiled for an architecture such as sm_90. */
char *fused_binary(Arena *a, const char *text, const char *arch, size_t *nbytes);
/* The compiled kernel of a text, the same for the same text as long as the context lives. */
void *fused_compile(Arena *a, const char *text);
/* Launches it with arg[i] the address of argument i. Returns as run(). */
int fused_launch(Call *c, void *kernel, const FusedText *t, void **arg);

#endif
