/* The line of progress on a terminal, which is rewritten in its place. It is cut to the columns
 * there are: of a line that the terminal wraps only the last row would be rewritten, and the rows
 * above it would stay. */
#include "train.h"

#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The number of bytes that so many characters of a text take. */
static size_t bytes_of(const char *text, int characters)
{
    size_t at = 0;
    while (text[at] && characters-- > 0)
        for (at++; ((unsigned char)text[at] & 0xC0) == 0x80; at++)
            ;
    return at;
}

void line_show(FILE *f, const char *format, ...)
{
    char text[512];
    struct winsize size = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col > 1)
        text[bytes_of(text, size.ws_col - 1)] = 0;
    fprintf(f, "\r\033[K%s", text);
}

void line_clear(FILE *f)
{
    fputs("\r\033[K", f);
}
