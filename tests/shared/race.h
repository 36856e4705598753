/* race: what tests of several ranks tell ThreadSanitizer. It does not see how oneDNN, which is not
 * compiled with it, guards its cache of primitives, which ranks share; what that library itself
 * calls is left out. */
#ifndef TENON_TEST_RACE_H
#define TENON_TEST_RACE_H

const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libdnnl.so\n";
}

#endif
