/* Convolutions that are products: of the weight and an image (convolution_product.c), and of the
 * map and an image (convolution_weight_product.c). */
#ifndef TENON_CONVOLUTION_PRODUCT_H
#define TENON_CONVOLUTION_PRODUCT_H

#include "../op/convolution.h"

/* Whether an image, or the weight (whole), lies row by row; images may have gaps between them. */
bool conv_lies(const Tensor *t, bool whole);

int64_t conv_pixels(const Conv *c);
/* Whether c multiplies matrices: kernels of one element, stride 1, one group. */
bool conv_is_product(const Conv *c);
/* y += x, n elements (convolution_onednn.c) */
void conv_add(float *y, const float *x, int64_t n);

bool conv_product_accepts(const Call *c);
int64_t conv_product_workspace(Ctx *ctx, const Call *c);
void conv_product_prepare(Call *c, Arena *a);
int64_t conv_product_handles(const Call *c);
int conv_product_run(Call *c);

bool conv_weight_product_accepts(const Call *c);
int64_t conv_weight_product_workspace(Ctx *ctx, const Call *c);
void conv_weight_product_prepare(Call *c, Arena *a);
int64_t conv_weight_product_handles(const Call *c);
int conv_weight_product_run(Call *c);

#endif
