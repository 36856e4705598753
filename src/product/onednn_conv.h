/* onednn_conv: convolutions of the library oneDNN, each for one thread: several threads run one
 * each, so that bits depend on sizes alone. */
#ifndef TENON_ONEDNN_CONV_H
#define TENON_ONEDNN_CONV_H

#include "onednn.h"

enum { ONE_IMAGE, ONE_WEIGHT, ONE_MAP, ONE_TENSORS };
enum { ONE_SPACE = 3 };

/* image[batch, groups in, s...], map[batch, groups out, t...] and weight[groups, out, in, k...], of
 * which `result` is made of the two others. Sums are in f32. All numbers are int64_t: a key without
 * gaps. Arrays are by axis of space, of which the last `axes` are there, or by tensor. */
typedef struct OneConv {
    int64_t result, axes, batch, groups, in, out;
    int64_t image[ONE_SPACE], kernel[ONE_SPACE], map[ONE_SPACE], stride[ONE_SPACE];
    int64_t dilation[ONE_SPACE], before[ONE_SPACE], after[ONE_SPACE];
    int64_t has_bias;           /* f32, for each channel of the map, which is made */
    int64_t plain[ONE_TENSORS]; /* row-major, in which DType: F32 or BF16 */
    int64_t own[ONE_TENSORS];   /* in the library's layout, in which it computes */
    int64_t next[ONE_TENSORS];  /* elements from image to image, from map to map */
} OneConv;

/* Bytes: of workspace (weight: of bringing the weight into another layout), and of each tensor in
 * the library's own layout; 0 where that is how it lies. made: bytes of the result as it is made,
 * however it lies. */
typedef struct OneConvRoom {
    int64_t scratch, weight, own[ONE_TENSORS], made;
} OneConvRoom;

/* Fails where there is none, with n's name. Makes no primitive. */
OneConvRoom onednn_conv_room(Ctx *ctx, const Node *n, const OneConv *c);

typedef struct OneConvRun OneConvRun;

/* As onednn_make() and onednn_twin(). */
OneConvRun *onednn_conv_make(Arena *a, const Node *n, const OneConv *c);
OneConvRun *onednn_conv_twin(Arena *a, const Node *n, const OneConvRun *run);
/* Brings a tensor from its plain layout into the library's own, the result from that into the plain
 * one. The weight is brought by all threads. Returns the library's status: 0 done. */
int onednn_conv_move(OneConvRun *x, int tensor, const void *from, void *to, void *scratch);
/* at: by tensor, as it is multiplied; the result's too. */
int onednn_conv_run(OneConvRun *x, void *const *at, const void *bias, void *scratch);

#endif
