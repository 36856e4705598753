/* Text files that commands write: aside, and renamed when they are whole. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_to(FILE *f, const char *text, const char *path)
{
    bool bad = fputs(text, f) < 0;
    bad |= f == stdout ? fflush(f) != 0 : fclose(f) != 0;
    return bad ? report(TN_CODE_FAIL, "%s: cannot write: %s", path, strerror(errno)) : 0;
}

/* A file that becomes the one of that path when it is whole; of a device or pipe it is the path. */
typedef struct Aside {
    char path[PATH_MAX];
    bool direct;
    FILE *f;
} Aside;

static int open_aside(const char *path, Aside *to)
{
    struct stat st;
    bool there = !stat(path, &st);
    to->direct = there && !S_ISREG(st.st_mode);
    if (snprintf(to->path, sizeof to->path, to->direct ? "%s" : "%s.tmp%ld", path,
                 (long)getpid()) >= (int)sizeof to->path)
        return report(TN_CODE_FAIL, "%s: path too long", path);
    if (there && S_ISDIR(st.st_mode))
        return report(TN_CODE_FAIL, "%s: cannot create: %s", path, strerror(EISDIR));
    to->f = fopen(to->path, "wb");
    return to->f ? 0 : report(TN_CODE_FAIL, "%s: cannot create: %s", path, strerror(errno));
}

/* Whether a device takes bytes: one that is always full says so of none. */
static int check_device(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    int bad = fd < 0 || write(fd, "", 0) < 0, why = errno;
    if (fd >= 0)
        close(fd);
    return bad ? report(TN_CODE_FAIL, "%s: cannot write: %s", path, strerror(why)) : 0;
}

int check_writable(const char *path)
{
    struct stat st;
    Aside x;
    bool there = !stat(path, &st);
    if (!strcmp(path, "-"))
        return 0;
    if (there && S_ISCHR(st.st_mode))
        return check_device(path);
    if (there && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return 0; /* a pipe that is opened and closed would end for its reader */
    int code = open_aside(path, &x);
    if (code)
        return code;
    bool bad = fputc(' ', x.f) < 0; /* a full disk has no room for a byte */
    int why = errno;
    if (fclose(x.f) && !bad) {
        bad = true;
        why = errno;
    }
    unlink(x.path);
    return bad ? report(TN_CODE_FAIL, "%s: cannot write: %s", path, strerror(why)) : 0;
}

int write_text(const char *path, const char *text)
{
    Aside x;
    if (!strcmp(path, "-"))
        return write_to(stdout, text, "standard output");
    int code = open_aside(path, &x);
    if (code)
        return code;
    code = write_to(x.f, text, path);
    if (!code && !x.direct && rename(x.path, path))
        code = report(TN_CODE_FAIL, "%s: cannot create: %s", path, strerror(errno));
    if (code && !x.direct)
        unlink(x.path);
    return code;
}
