/* Tables of buffers: what is read of a CSV file, what is said of a wrong one and where, and that
 * what is printed differs from what was read in its offsets alone. The checker of placements
 * against one that compares all pairs. */
#include "../../src/place/place.h"
#include "../shared/test.h"

static Ctx ctx;
static Arena *a;

/* ---- reading ---- */

typedef struct Text {
    const char *text;
    PlaceTable *t;
} Text;

static void parse(void *arg)
{
    Text *x = arg;
    x->t = place_parse(a, x->text, strlen(x->text), "f.csv");
}

static PlaceTable *table(const char *text)
{
    Text x = {text, NULL};
    bool good = ctx_try(&ctx, parse, &x) == TN_OK;
    if (!EXPECT(good))
        printf("  %s: %s\n", text, ctx.message);
    CHECK(good);
    return x.t;
}

#define WRONG(text, part) EXPECT_FAIL(&ctx, parse, (&(Text){text, NULL}), part)
#define HEAD              "id,lower,upper,size\n"

static bool row_is(const PlaceTable *t, int i, const char *id, PlaceBuf b)
{
    const PlaceBuf *x = &t->buf[i];
    return i < t->n && !strcmp(t->row[i].id, id) && x->start == b.start && x->end == b.end &&
           x->nbytes == b.nbytes && x->offset == b.offset;
}

static void test_forms(void)
{
    PlaceTable *t = table(HEAD "a,0,3,4\nb,-2,5,6\n");
    EXPECT(t->n == 2 && row_is(t, 0, "a", (PlaceBuf){0, 3, 4, -1}) && !t->unread);
    EXPECT(row_is(t, 1, "b", (PlaceBuf){-2, 5, 6, -1}) && !t->has_offset);
    t = table("\xef\xbb\xbf\r\n size , upper,id,\"lower\"\r\n\r\n8,3,\"a,\"\"b\"\"\r\nc\",0\r\n "
              "\t\r\n\"5\", 6 ,,-1");
    EXPECT(t->n == 2 && row_is(t, 0, "a,\"b\"\r\nc", (PlaceBuf){0, 3, 8, -1}));
    EXPECT(row_is(t, 1, "", (PlaceBuf){-1, 6, 5, -1}));
    t = table("id,lower,upper,size,offset\ra,0,1,2,64\rb,0,1,2,\rc,0,1,2,x\rd,0,1,2,-1\r");
    EXPECT(t->n == 4 && t->has_offset && t->buf[0].offset == 64);
    EXPECT(t->buf[1].offset == -1 && t->buf[2].offset == -1 && t->buf[3].offset == -1);
    t = table("id,alignment,lower,upper,size,\na,1,0,1,2,\n");
    EXPECT(t->unread &&
           !strcmp(t->unread, "f.csv:1:1: not read, only copied: \"alignment\", \"\""));
    EXPECT(table(HEAD)->n == 0 && table("id,lower,upper,size")->n == 0);
    t = table(
        HEAD
        "a b,4611686018427387904,4611686018427387904,4611686018427387904\n 5\" disk,0,0,000\n");
    EXPECT(row_is(t, 0, "a b", (PlaceBuf){PLACE_MOST, PLACE_MOST, PLACE_MOST, -1}));
    EXPECT(row_is(t, 1, " 5\" disk", (PlaceBuf){0, 0, 0, -1}));
}

static void test_wrong(void)
{
    WRONG("",
          "f.csv:1:1: expected a header with the columns id, lower, upper and size, found nothing");
    WRONG("\n \r\n", "f.csv:3:1: expected a header");
    WRONG("0,1,2,3\n",
          "f.csv:1:1: expected a header with the columns id, lower, upper and size, found "
          "no id in \"0,1,2,3\"");
    WRONG("\nid;lower;upper;size\n", "f.csv:2:1: expected a header");
    WRONG("id,lower,upper,sise\n", "found no size in \"id,lower,upper,sise\"");
    WRONG("id,lower,size,upper,size\n", "f.csv:1:21: expected one column \"size\", found two");
    WRONG(HEAD "a,0,1\n", "f.csv:2:1: expected 4 fields, as in the header, found 3");
    WRONG(HEAD "a,0,1,2\n\nb,0,1,2,3\n", "f.csv:4:1: expected 4 fields, as in the header, found 5");
    WRONG(HEAD "a,x,1,2\n",
          "f.csv:2:3: lower: expected an integer from -2^62 to 2^62, found \"x\"");
    WRONG(HEAD "a,0,1,\n", "f.csv:2:7: size: expected an integer from 0 to 2^62, found nothing");
    WRONG(HEAD "a,0,1,-1\n", "f.csv:2:7: size: expected an integer from 0 to 2^62, found \"-1\"");
    WRONG(HEAD "a,0,1e3,1\n", "f.csv:2:5: upper: expected an integer");
    WRONG(HEAD "a,0,-,1\n", "f.csv:2:5: upper: expected an integer");
    WRONG(HEAD "a,0,1.0,1\n", "found \"1.0\"");
    WRONG(HEAD "a,0,1,4611686018427387905\n", "found \"4611686018427387905\"");
    WRONG(HEAD "a,0,1,99999999999999999999999999999\n", "found \"99999999999999999999999999999\"");
    WRONG(HEAD "a,-4611686018427387905,1,1\n", "f.csv:2:3: lower: expected");
    WRONG(HEAD "a,5,3,1\n", "f.csv:2:5: upper: expected at least lower, 5, found 3");
    WRONG(HEAD "a,0,1,4611686018427387904\nb,7,8,1\n",
          "f.csv:3:7: size: expected at most 2^62 in all rows together, found more");
    WRONG(HEAD "a,0,1,2\n\"a\",0,1,2\n",
          "f.csv:3:2: expected each id once, found \"a\" as in line 2");
    WRONG(HEAD "\"a\nb\",0,1,2\n\"a\nb\",0,x,2\n",
          "f.csv:4:2: expected each id once, found \"a?b\" as "
          "in line 2");
    WRONG(HEAD "\"a\nb\",0,1,2\nc,0,x,2\n", "f.csv:4:5: upper: expected an integer");
    WRONG(HEAD "a,0,1,\"2\n3,4\n",
          "f.csv:2:7: expected a quote that closes this one, found the end");
    WRONG(HEAD "\"a\"b,0,1,2\n",
          "f.csv:2:4: expected a comma or the end of the line behind the quote");
}

/* ---- NUL bytes, offsets, printing ---- */

static void parse_nul(void *arg)
{
    static const char nul[] = HEAD "a,\0,1,2\n";
    (void)arg;
    place_parse(a, nul, sizeof nul - 1, "f.csv");
}

static void need(void *t)
{
    place_need_offsets(t);
}

static void overlap(void *t)
{
    const PlaceTable *x = t;
    PlaceCheck c = place_check(a, x->buf, x->n);
    CHECK(c.first >= 0);
    place_overlap(x, &c);
}

static void test_offsets(void)
{
    EXPECT_FAIL(&ctx, parse_nul, NULL, "f.csv:2:3: expected text, found a NUL byte");
    EXPECT_FAIL(&ctx, need, table(HEAD "a,0,1,2"),
                "f.csv:1:1: expected a column offset, found none in \"id,");
    EXPECT_FAIL(
        &ctx, need, table("id,lower,upper,size,offset\na,0,1,2,4\nb,0,1,2,\n"),
        "f.csv:3:9: offset: expected an integer from 0 to 2^62 less the size, found nothing");
    EXPECT_FAIL(&ctx, need, table("id,lower,upper,size,offset\na,0,1,2,4611686018427387903\n"),
                "f.csv:2:9: offset: expected an integer from 0 to 2^62 less the size, found "
                "4611686018427387903");
    EXPECT_FAIL(
        &ctx, overlap,
        table("offset,id,lower,upper,size\n0,\"x\n\",0,9,8\n8,y,2,5,8\n4,z,5,7,4\n\n"
              "9,w,3,7,1\n"),
        "f.csv:7:1: \"w\" at 9 to 10 overlaps \"y\" of line 4 at 8 to 16, both alive from 3 "
        "to 5");
}

static const char *printed(const char *text, int64_t first, int64_t second)
{
    PlaceTable *t = table(text);
    Buf b = {.a = a};
    t->buf[0].offset = first;
    t->buf[1].offset = second;
    place_print(&b, t);
    return b.text;
}

static void test_print(void)
{
    EXPECT(!strcmp(
        printed("\xef\xbb\xbfsize,id,\"lower\",upper\r\n\r\n2,\"a\r\n,\"\"\",0,1 \r\n3, b,1,2", 7,
                PLACE_MOST),
        "size,id,\"lower\",upper,offset\n2,\"a\r\n,\"\"\",0,1 ,7\n"
        "3, b,1,2,4611686018427387904\n"));
    EXPECT(!strcmp(printed("id,offset,lower,upper,size,name\na,,0,1,2,x\nb,\"77\",0,1,2,\n", 2, 0),
                   "id,offset,lower,upper,size,name\na,2,0,1,2,x\nb,0,0,1,2,\n"));
}

/* ---- the checker ---- */

static uint64_t seed = 88172645463325252u;

static int64_t below(int64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (int64_t)((seed >> 11) % (uint64_t)n);
}

static bool overlaps(const PlaceBuf *x, const PlaceBuf *y)
{
    return MAX(x->start, y->start) < MIN(x->end, y->end) &&
           MAX(x->offset, y->offset) < MIN(x->offset + x->nbytes, y->offset + y->nbytes);
}

/* The largest live sum is reached where some buffer starts. */
static int64_t largest_sum(const PlaceBuf *b, int n)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        int64_t sum = 0;
        for (int j = 0; b[i].start < b[i].end && j < n; j++)
            if (b[j].start <= b[i].start && b[i].start < b[j].end)
                sum += b[j].nbytes;
        most = MAX(most, sum);
    }
    return most;
}

static void check_one(const PlaceBuf *b, int n, int *nwrong)
{
    PlaceCheck c = place_check(a, b, n);
    int64_t peak = 0;
    bool any = false;
    for (int i = 0; i < n; i++) {
        if (b[i].nbytes && b[i].start < b[i].end)
            peak = MAX(peak, b[i].offset + b[i].nbytes);
        for (int j = 0; j < i; j++)
            any |= overlaps(&b[i], &b[j]);
    }
    EXPECT(c.peak == peak && c.bound == largest_sum(b, n));
    EXPECT(any == (c.first >= 0));
    EXPECT(!any || (c.first < c.second && overlaps(&b[c.first], &b[c.second])));
    *nwrong += any;
}

/* Placements that are right, then with one buffer moved, which may or may not be wrong. */
static void test_checker(int count)
{
    int nwrong = 0, nplaced_wrong = 0;
    for (int k = 0; k < count; k++) {
        PlaceBuf b[300];
        int n = (int)below(k % 20 ? 20 : LEN(b));
        int64_t span = 1 + below(3 * n + 1);
        for (int i = 0; i < n; i++) {
            int64_t start = below(span) - span / 2;
            b[i] = (PlaceBuf){start, start + below(span / 2 + 2), below(20), 0};
        }
        place(a, b, n, 0, 0);
        check_one(b, n, &nplaced_wrong);
        if (n)
            b[below(n)].offset = below(40);
        check_one(b, n, &nwrong);
        arena_reset(a);
    }
    EXPECT(!nplaced_wrong && nwrong > count / 4 && nwrong < count);
}

/* Two that overlap, with many between their offsets that are not alive with them. */
static void test_far(void)
{
    enum { N = 300000 };
    PlaceBuf *b = NEWN(a, PlaceBuf, N);
    for (int i = 0; i < N; i++)
        b[i] = (PlaceBuf){200, 201, 1, i};
    b[1] = (PlaceBuf){0, 20, 1, 0}; /* beside each of the two, and gone before the other comes */
    b[2] = (PlaceBuf){0, 20, 1, N};
    for (int k = 0; k < 2; k++) { /* the one that comes later is above, or below */
        b[0] = (PlaceBuf){k ? 50 : 0, 100, N - 1, 1};
        b[N - 1] = (PlaceBuf){k ? 0 : 50, 100, 1, N - 1};
        PlaceCheck c = place_check(a, b, N);
        EXPECT(c.first == 0 && c.second == N - 1 && c.peak == N + 1 && c.bound == N + 1 - k);
        b[N - 1].offset = N + 1;
        EXPECT(place_check(a, b, N).first == -1);
    }
}

int main(void)
{
    a = arena_new(&ctx);
    CHECK(a);
    test_forms();
    test_wrong();
    test_offsets();
    test_print();
    test_far();
    test_checker(getenv("TN_QUICK") ? 300 : 3000);
    arena_free(a);
    return test_report();
}
