/* test: what the test programs share. Each ends with `return test_report();`. */
#ifndef TENON_TEST_H
#define TENON_TEST_H

#include "../../src/base/base.h"

#include <stdlib.h>
#include <string.h>

static int test_npass, test_nfail;

#define EXPECT(cond) test_note((cond), __FILE__, __LINE__, #cond)

static inline bool test_note(bool ok, const char *file, int line, const char *what)
{
    if (ok)
        test_npass++;
    else if (++test_nfail <= 50)
        printf("%s:%d: does not hold: %s\n", file, line, what);
    return ok;
}

/* That fn(arg) fails with a message that contains `part`. */
#define EXPECT_FAIL(ctx, fn, arg, part) test_fails((ctx), (fn), (arg), (part), __FILE__, __LINE__)

static inline void test_fails(Ctx *ctx, void (*fn)(void *), void *arg, const char *part,
                              const char *file, int line)
{
    ctx->message[0] = 0;
    Code code = ctx_try(ctx, fn, arg);
    if (!test_note(code && strstr(ctx->message, part), file, line, part))
        printf("  found: %s\n", code ? ctx->message : "no error");
}

static inline int test_report(void)
{
    printf("%d passed, %d failed\n", test_npass, test_nfail);
    return test_nfail ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
