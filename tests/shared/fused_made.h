/* Bodies of `fused` as texts of CUDA (op/fused_text.c) that were compiled for the processor with
 * the test program: it is linked twice, and in between prints the texts that it will ask for. */
#ifndef TENON_TEST_FUSED_MADE_H
#define TENON_TEST_FUSED_MADE_H

/* A text, and what calls its kernel with arg[i] the address of argument i. */
typedef struct FusedMade {
    const char *text;
    void (*call)(unsigned blocks, unsigned threads, void **arg);
} FusedMade;

#ifdef __cplusplus
extern "C" {
#endif

extern const FusedMade fused_made[] __attribute__((weak)); /* ends with {0} */

/* Prints a file of C++ that defines fused_made[] for these texts. */
void fused_made_print(const char *const *text, int count);

#ifdef __cplusplus
}
#endif
#endif
