/* convolution_product.c: convolutions that are products of the weight and an image. */
#ifndef TENON_CONVOLUTION_PRODUCT_H
#define TENON_CONVOLUTION_PRODUCT_H

#include "../op/convolution.h"

/* Whether an image, or the weight (whole), lies row by row; images may have gaps between them. */
bool conv_lies(const Tensor *t, bool whole);

bool conv_product_accepts(const Call *c);
int64_t conv_product_workspace(Ctx *ctx, const Call *c);
void conv_product_prepare(Call *c, Arena *a);
int64_t conv_product_handles(const Call *c);
int conv_product_run(Call *c);

#endif
