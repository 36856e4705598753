/* Splits work into as many equal parts as there are threads. Where parts begin depends only on n,
 * the grain and the number of threads, never on timing. */
#include "base.h"

#ifdef _OPENMP
#include <omp.h>

int par_threads(void)
{
    return omp_get_max_threads();
}

void par_set_threads(int n)
{
    omp_set_num_threads(n > 0 ? n : omp_get_num_procs());
}
#else
int par_threads(void)
{
    return 1;
}

void par_set_threads(int n)
{
    (void)n; /* all work is in the thread that has it */
}
#endif

void par_for(int64_t n, int64_t grain, void (*fn)(void *arg, int64_t lo, int64_t hi), void *arg)
{
    int64_t parts = MIN((int64_t)par_threads(), (n + grain - 1) / MAX(grain, 1));
    if (parts <= 1) {
        if (n > 0)
            fn(arg, 0, n);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads((int)parts)
#endif
    for (int64_t i = 0; i < parts; i++)
        fn(arg, n * i / parts, n * (i + 1) / parts);
}
