/* folder: what test programs share that work in a folder of their own. Their main is
 * `return test_in_folder(tests, LEN(tests));`. */
#ifndef TENON_TEST_FOLDER_H
#define TENON_TEST_FOLDER_H

#include "test.h"

#include <dirent.h>
#include <unistd.h>

static Ctx ctx;
static Arena *a; /* of one test */
static char dir[] = "/tmp/tenon-test-XXXXXX";

static inline const char *in_dir(const char *name)
{
    return arena_printf(a, "%s/%s", dir, name);
}

static inline int count_entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Runs each test, with an arena of its own, and removes the folder; a test leaves no file open. */
static inline int test_in_folder(void (*const tests[])(void), int n)
{
    CHECK(mkdtemp(dir));
    int nfd = count_entries("/proc/self/fd");
    for (int i = 0; i < n; i++) {
        a = arena_new(&ctx);
        tests[i]();
        arena_free(a);
        EXPECT(count_entries("/proc/self/fd") == nfd);
    }
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(!system(command));
    return test_report();
}

#endif
