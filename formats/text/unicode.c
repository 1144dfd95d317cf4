/*
 * The classes of all 1.1 million code points take two bytes each in a table that is built from
 * ranges at first use.  Normal form C is computed stretch by stretch: most text cannot change and
 * is copied; the algorithm of Unicode's annex 15 runs only around characters that compose or
 * decompose. ICU is not used because ids depend on the version of the tables, which must be that of
 * the tokenizers library.
 */
#include "formats/text/unicode.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "formats/text/unicode_classes.h"
#include "formats/text/unicode_nfc.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))
#define POINTS 0x110000
#define PAIRS_MAX 1024
#define OTHERS_MAX 2048
#define CLASSES_MAX 64 /* above the ranks of all combining classes */

/* Hangul syllables, by arithmetic. */
enum { S0 = 0xac00, L0 = 0x1100, V0 = 0x1161, T0 = 0x11a7, LN = 19, VN = 21, TN = 28 };

static uint16_t classes[POINTS];
static struct pair {
    uint32_t first, second, result;
} pair[PAIRS_MAX]; /* by `second`, then by `first` */
static uint16_t pair_by_result[PAIRS_MAX];
static size_t pair_count;
static struct {
    uint32_t point;
    uint16_t at, n; /* its decomposition in `others` */
} other[OTHERS_MAX];
static size_t others_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Add classes to the characters of a table, or remove those that they have. */
static void toggle(const uint32_t *range, size_t n, int bits)
{
    uint32_t c = 0;
    for (size_t i = 0; i < n; i += 2) {
        c += range[i];
        for (uint32_t end = c + range[i + 1]; c < end; c++)
            classes[c] = (uint16_t)(classes[c] ^ bits);
    }
}

static void add_unstable(uint32_t first, uint32_t n)
{
    for (uint32_t c = first; c < first + n; c++)
        classes[c] |= FM_UNSTABLE;
}

static int by_result(const void *a, const void *b)
{
    uint32_t x = pair[*(const uint16_t *)a].result, y = pair[*(const uint16_t *)b].result;
    return (x > y) - (x < y);
}

/* The sums of the differences in the tables of form C, whose characters may change in it. */
static void build_nfc(void)
{
    uint32_t c = 0;
    for (size_t i = 0; i < COUNT(orders); i += 3) {
        add_unstable(orders[i] += c, orders[i + 1]);
        c = orders[i] + orders[i + 1];
    }
    c = 0;
    for (size_t i = 0; i < COUNT(pairs);) {
        uint32_t first = 0, n = pairs[i + 1];
        add_unstable(c += pairs[i], 1);
        for (i += 2; n > 0; n--, i += 2) {
            assert(pair_count < PAIRS_MAX);
            pair_by_result[pair_count] = (uint16_t)pair_count;
            pair[pair_count++] = (struct pair){first += pairs[i], c, pairs[i + 1]};
        }
    }
    qsort(pair_by_result, pair_count, sizeof *pair_by_result, by_result);
    c = 0;
    for (size_t i = 0; i < COUNT(others);) {
        uint32_t first = c + others[i], n = others[i + 2];
        add_unstable(first, others[i + 1]);
        c = first + others[i + 1];
        for (i += 3; first < c; first++, i += n, others_count++) {
            assert(others_count < OTHERS_MAX);
            other[others_count].point = first;
            other[others_count].at = (uint16_t)i;
            other[others_count].n = (uint16_t)n;
        }
    }
    add_unstable(V0, VN);
    add_unstable(T0 + 1, TN - 1);
}

static void build(void)
{
    toggle(cased, COUNT(cased), FM_LETTER | FM_LOWER | FM_WORD);
    toggle(upper, COUNT(upper), FM_LOWER | FM_UPPER);
    toggle(uncased, COUNT(uncased), FM_LETTER | FM_WORD);
    toggle(marks, COUNT(marks), FM_MARK | FM_WORD);
    toggle(numbers, COUNT(numbers), FM_NUMBER | FM_DIGIT | FM_WORD);
    toggle(spaces, COUNT(spaces), FM_SPACE);
    toggle(signs, COUNT(signs), FM_SIGN);
    toggle(words, COUNT(words), FM_WORD);
    toggle(digits, COUNT(digits), FM_DIGIT);
    classes['\r'] |= FM_NEWLINE;
    classes['\n'] |= FM_NEWLINE;
    build_nfc();
}

const uint16_t *fm_unicode_classes(void)
{
    pthread_once(&once, build);
    return classes;
}

size_t fm_unicode_check(const char *text, size_t size)
{
    size_t i = 0;
    while (i < size) {
        uint64_t eight;
        while (size - i >= 8 && (memcpy(&eight, text + i, 8), !(eight & 0x8080808080808080u)))
            i += 8;
        if (i == size)
            break;
        uint32_t c;
        int n = fm_utf8_decode(text + i, size - i, &c);
        if (n == 0)
            return i;
        i += (size_t)n;
    }
    return i;
}

/* --- normal form C --- */

/* A stretch of text that may change: a character that does not depend on the text before it, and
 * the characters after it that may. */
struct stretch {
    uint32_t *point;
    size_t n, capacity;
    bool failed;
};

static void push(struct stretch *s, uint32_t c)
{
    struct fm_err unused = {0};
    s->failed = s->failed || FM_GROW(s->point, s->capacity, s->n + 1, "a text", &unused);
    if (!s->failed)
        s->point[s->n++] = c;
}

/* The rank of a mark's combining class, from 1 on; 0 for a starter. */
static int order_of(uint32_t c)
{
    size_t low = 0, high = COUNT(orders) / 3;
    if (!(classes[c] & FM_UNSTABLE))
        return 0;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c < orders[3 * middle])
            high = middle;
        else if (c - orders[3 * middle] >= orders[3 * middle + 1])
            low = middle + 1;
        else
            return (int)orders[3 * middle + 2];
    }
    return 0;
}

static bool push_other(struct stretch *s, uint32_t c)
{
    size_t low = 0, high = others_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c == other[middle].point) {
            for (size_t i = 0; i < other[middle].n; i++)
                push(s, others[other[middle].at + i]);
            return true;
        }
        if (c > other[middle].point)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

static void decompose(struct stretch *s, uint32_t c)
{
    uint32_t tail[8];
    int n = 0;
    if (c >= S0 && c < S0 + LN * VN * TN) {
        c -= S0;
        push(s, L0 + c / (VN * TN));
        push(s, V0 + c / TN % VN);
        if (c % TN)
            push(s, T0 + c % TN);
        return;
    }
    /* The first of a pair may be a pair itself; the second never is. */
    for (size_t low = 0, high = pair_count; low < high && n < 8;) {
        size_t middle = (low + high) / 2;
        const struct pair *p = &pair[pair_by_result[middle]];
        if (c == p->result) {
            c = p->first;
            tail[n++] = p->second;
            low = 0;
            high = pair_count;
        } else if (c > p->result) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (!push_other(s, c))
        push(s, c);
    while (n > 0)
        push(s, tail[--n]);
}

/* Sort the n marks from `at` on by class, stably. */
static void sort_marks(struct stretch *s, size_t at, size_t n)
{
    uint32_t *point = s->point + at;
    bool sorted = true;
    for (size_t i = 1; i < n; i++)
        sorted = sorted && order_of(point[i - 1]) <= order_of(point[i]);
    if (sorted)
        return;
    uint32_t *copy = malloc(n * sizeof *copy);
    s->failed = s->failed || !copy;
    if (!copy)
        return;
    memcpy(copy, point, n * sizeof *copy);
    for (int class = 1; class < CLASSES_MAX; class ++)
        for (size_t i = 0; i < n; i++)
            if (order_of(copy[i]) == class)
                *point++ = copy[i];
    free(copy);
}

static void reorder(struct stretch *s)
{
    for (size_t i = 0, j; i < s->n; i = j) {
        for (j = i; j < s->n && order_of(s->point[j]) > 0;)
            j++;
        if (j > i + 1)
            sort_marks(s, i, j - i);
        j += j == i;
    }
}

/* The composition of a and b, or 0. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    if (a >= L0 && a < L0 + LN && b >= V0 && b < V0 + VN)
        return S0 + ((a - L0) * VN + (b - V0)) * TN;
    if (a >= S0 && a < S0 + LN * VN * TN && (a - S0) % TN == 0 && b > T0 && b < T0 + TN)
        return a + (b - T0);
    uint64_t key = (uint64_t)b << 32 | a;
    size_t low = 0, high = pair_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint64_t have = (uint64_t)pair[middle].second << 32 | pair[middle].first;
        if (key == have)
            return pair[middle].result;
        if (key > have)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

static void compose(struct stretch *s)
{
    size_t n = 0, starter = SIZE_MAX;
    int last = 0; /* class of the last character after the starter */
    for (size_t i = 0; i < s->n; i++) {
        uint32_t c = s->point[i], one;
        int class = order_of(c);
        if (starter != SIZE_MAX && (last == 0 || last < class) &&
            (one = compose_pair(s->point[starter], c)) != 0) {
            s->point[starter] = one;
            continue;
        }
        if (class == 0)
            starter = n;
        last = class;
        s->point[n++] = c;
    }
    s->n = n;
}

void fm_unicode_nfc(struct fm_text *out, const char *text, size_t size)
{
    const uint16_t *class = fm_unicode_classes();
    struct stretch s = {0};
    size_t copied = 0, before = 0; /* before: start of the last stable character */
    int bytes;
    for (size_t at = 0; at < size;) {
        if (!(class[fm_unicode_at(text + at, &bytes)] & FM_UNSTABLE)) {
            before = at;
            at += (size_t)bytes;
            continue;
        }
        fm_text_add(out, text + copied, before - copied);
        for (size_t p = before; p < size; p += (size_t)bytes) {
            uint32_t c = fm_unicode_at(text + p, &bytes);
            if (p > before && !(class[c] & FM_UNSTABLE))
                break;
            decompose(&s, c);
            at = p + (size_t)bytes;
        }
        char utf8[4];
        reorder(&s);
        compose(&s);
        out->failed = out->failed || s.failed;
        for (size_t i = 0; i < s.n; i++)
            fm_text_add(out, utf8, (size_t)fm_utf8_encode(utf8, s.point[i]));
        s.n = 0;
        copied = before = at;
    }
    fm_text_add(out, text + copied, size - copied);
    free(s.point);
}
