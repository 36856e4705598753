/* Convolutions: sizes and attributes (convolution.c), which rules and reference share with the
 * kernels (product/convolution_onednn.c). */
#ifndef TENON_CONVOLUTION_H
#define TENON_CONVOLUTION_H

#include "op.h"

extern const Kernel convolution_kernels[], convolution_weight_kernels[];

enum { CONV_INPUT, CONV_WEIGHT, CONV_BIAS }; /* operands of convolution */
enum { CONV_IMAGE, CONV_MAP };               /* operands of convolution_backward_weight */
enum { SPACE_AXES = 3 };                     /* of an image, at most */

/* map[n, o, t] = sum over c and k of image[n, c, t stride + k dilation - padding] weight[o, c, k],
 * where o and c are of one group. Axes of space that an image does not have stand in front, of size
 * 1. */
typedef struct Conv {
    bool transposed;                /* makes the image of map and weight */
    int axes;                       /* of space, that it has */
    int64_t batch, groups, in, out; /* channels of the image and of the map, of each group */
    int64_t image[SPACE_AXES], map[SPACE_AXES], kernel[SPACE_AXES];
    int64_t stride[SPACE_AXES], padding[SPACE_AXES], dilation[SPACE_AXES];
} Conv;

/* weight[groups out, in, kernel...]; the lists have a number for each axis of space. */
Conv conv_make(const Type *image, const Type *map, const Type *weight, int64_t groups,
               const int64_t *stride, const int64_t *padding, const int64_t *dilation);
Conv conv_of(const Node *n);        /* of convolution */
Conv conv_weight_of(const Node *n); /* of convolution_backward_weight */

/* The nodes of what two of c's tensors make: the map as far as it goes, and the gradients. */
Value *conv_image(Build *b, const Conv *c, Value *map, Value *weight);
Value *conv_map(Build *b, const Conv *c, Value *image, Value *weight);
Value *conv_weight(Build *b, const Conv *c, Value *image, Value *map);

/* ---- convolution_rows.c: depthwise, over one axis with stride 1 ---- */

bool conv_rows_accepts(const Call *c);
int conv_rows_run(Call *c);
bool conv_rows_weight_accepts(const Call *c);
int conv_rows_weight_run(Call *c);

/* ---- convolution_ref.c ---- */

int conv_ref(Call *c);
int conv_weight_ref(Call *c);

#endif
