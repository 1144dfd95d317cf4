/*
 * Fuzz entry points: each tests/fuzz/fuzz_*.c defines LLVMFuzzerTestOneInput and ends with
 * FUZZ_MAIN.  For a format with checksums, lengths or a grammar it also defines
 * LLVMFuzzerCustomMutator, which changes the contents and then corrects checksums and lengths.
 *
 * With -DFM_FUZZ (clang -fsanitize=fuzzer,address,undefined) libFuzzer provides the main function.
 * Without it, main runs the entry on every file given, or on all files of a directory, and on RUNS
 * mutations of each:
 *
 *     build/tests/fuzz/fuzz_bundle [-n RUNS] FILE...
 *
 * The mutations are the same in every run.  A target may define its own mutator; the default one
 * sets, flips, removes or repeats bytes.  Exit status 0 when all inputs have been run, 1 without
 * inputs.
 */
#ifndef FM_TESTS_FUZZ_H
#define FM_TESTS_FUZZ_H

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The target's own mutator: changes data (capacity bytes) and returns the new size. */
#ifdef FM_FUZZ
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed);
#else
__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity,
                                                     unsigned seed);
#endif
/* A mutation of bytes without regard to the format: libFuzzer's, or the one below. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity);

static inline void must(int ok)
{
    if (!ok)
        abort();
}

#ifdef FM_FUZZ
/*
 * The input as a file that exists only in this process.  These functions replace the C library's,
 * so that opening and reading it needs no system calls, which would take half of the time of a
 * small input.  Any other call with its descriptor fails, because the kernel does not have it.
 */
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define FUZZ_FD (1 << 24)
#define FUZZ_FILE "/fuzz/input"

static const uint8_t *fuzz_input;
static size_t fuzz_input_size;

static int fuzz_stat(struct stat *st)
{
    *st = (struct stat){
        .st_mode = S_IFREG | 0444, .st_ino = 1, .st_nlink = 1, .st_size = (off_t)fuzz_input_size};
    return 0;
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return strcmp(path, FUZZ_FILE) == 0 ? FUZZ_FD : openat(AT_FDCWD, path, flags, mode);
}

int fstat(int fd, struct stat *st)
{
    return fd == FUZZ_FD ? fuzz_stat(st) : fstatat(fd, "", st, AT_EMPTY_PATH);
}

int stat(const char *path, struct stat *st)
{
    return strcmp(path, FUZZ_FILE) == 0 ? fuzz_stat(st) : fstatat(AT_FDCWD, path, st, 0);
}

int lstat(const char *path, struct stat *st)
{
    return strcmp(path, FUZZ_FILE) == 0 ? fuzz_stat(st)
                                        : fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int access(const char *path, int mode)
{
    return strcmp(path, FUZZ_FILE) == 0 ? 0 : faccessat(AT_FDCWD, path, mode, 0);
}

ssize_t pread(int fd, void *to, size_t size, off_t offset)
{
    if (fd != FUZZ_FD)
        return preadv(fd, &(struct iovec){to, size}, 1, offset);
    size_t left = (size_t)offset < fuzz_input_size ? fuzz_input_size - (size_t)offset : 0;
    size = size < left ? size : left;
    memcpy(to, fuzz_input + fuzz_input_size - left, size);
    return (ssize_t)size;
}

int close(int fd)
{
    return fd == FUZZ_FD ? 0 : (int)syscall(SYS_close, fd);
}

static inline const char *fuzz_file(const uint8_t *data, size_t size)
{
    fuzz_input = data;
    fuzz_input_size = size;
    return FUZZ_FILE;
}
#else
/* Write the input to a file that can be opened by name, the same file each time. */
static inline const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || pwrite(fd, data, size, 0) != (ssize_t)size || ftruncate(fd, (off_t)size) != 0)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}
#endif

/* Make a directory, on a file system in memory if there is one. */
static inline const char *fuzz_directory(void)
{
    static char shm[] = "/dev/shm/fm-fuzz-XXXXXX", tmp[] = "/tmp/fm-fuzz-XXXXXX";
    const char *dir = mkdtemp(shm);
    if (!dir)
        dir = mkdtemp(tmp);
    must(dir != NULL);
    return dir;
}

/* The next random number below n from the seed. */
static inline uint32_t fuzz_draw(unsigned *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*seed >> 4) * n >> 28);
}

/* Replace `old` bytes at `at` by n others; returns the new size.  Nothing changes if they do not
 * fit. */
static inline size_t fuzz_splice(uint8_t *data, size_t size, size_t capacity, size_t at, size_t old,
                                 const void *with, size_t n)
{
    if (size - old + n > capacity)
        return size;
    memmove(data + at + n, data + at + old, size - at - old);
    memcpy(data + at, with, n);
    return size - old + n;
}

/* --- JSON --- */

#define FUZZ_TOKENS_MAX 4096
#define FUZZ_COPY_MAX 4096
#define FUZZ_JSON_MARKS "{}[]():, \t\r\n"

struct fuzz_token {
    size_t at, size;
};

/* The offset of the first byte after the string that begins at `at`. */
static inline size_t fuzz_json_string(const uint8_t *text, size_t size, size_t at)
{
    for (at++; at < size && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at < size ? at + 1 : size;
}

/* Find the tokens of a text: strings with their quotes, numbers and words.  Returns how many. */
static inline size_t fuzz_json_tokens(struct fuzz_token *token, const uint8_t *text, size_t size)
{
    size_t n = 0;
    for (size_t at = 0; at < size && n < FUZZ_TOKENS_MAX;) {
        size_t from = at;
        if (strchr(FUZZ_JSON_MARKS, text[at])) { /* matches NUL, too */
            at++;
            continue;
        }
        if (text[at] == '"')
            at = fuzz_json_string(text, size, at);
        else
            while (at < size && text[at] != '"' && !strchr(FUZZ_JSON_MARKS, text[at]))
                at++;
        token[n++] = (struct fuzz_token){from, at - from};
    }
    return n;
}

/* The end of the member or element that begins at `at`: its comma, or the bracket after it. */
static inline size_t fuzz_json_end(const uint8_t *text, size_t size, size_t at)
{
    int depth = 0;
    while (at < size) {
        if (text[at] == '"') {
            at = fuzz_json_string(text, size, at);
            continue;
        }
        depth += (text[at] == '{' || text[at] == '[') - (text[at] == '}' || text[at] == ']');
        if (depth < 0 || (depth == 0 && text[at] == ','))
            break;
        at++;
    }
    return at;
}

/* Change one token or member of a JSON text, or of lines of JSON: replace it by an odd value or
 * another token, mutate its bytes, remove it, repeat it, or copy it elsewhere. */
static inline size_t fuzz_json(uint8_t *text, size_t size, size_t capacity, unsigned seed)
{
    static const char *const odd[] = {"null",
                                      "true",
                                      "false",
                                      "0",
                                      "1",
                                      "-1",
                                      "2",
                                      "8",
                                      "0.5",
                                      "1e-6",
                                      "1e308",
                                      "1e999",
                                      "-0",
                                      "255",
                                      "65536",
                                      "2147483647",
                                      "2147483648",
                                      "4294967296",
                                      "9007199254740992",
                                      "9223372036854775807",
                                      "18446744073709551615",
                                      "\"\"",
                                      "\"x\"",
                                      "\"0\"",
                                      "\"\\n\"",
                                      "\"\\ud800\"",
                                      "[]",
                                      "{}",
                                      "[[]]",
                                      "[1]",
                                      "[0,0]",
                                      "{\"x\":1}"};
    static struct fuzz_token token[FUZZ_TOKENS_MAX];
    uint8_t copy[FUZZ_COPY_MAX];
    size_t n = fuzz_json_tokens(token, text, size);
    if (n == 0)
        return LLVMFuzzerMutate(text, size, capacity);
    struct fuzz_token t = token[fuzz_draw(&seed, (uint32_t)n)];
    struct fuzz_token to = token[fuzz_draw(&seed, (uint32_t)n)];
    size_t end = fuzz_json_end(text, size, t.at), whole = end - t.at;
    switch (fuzz_draw(&seed, 7)) {
    case 0: {
        const char *value = odd[fuzz_draw(&seed, sizeof odd / sizeof *odd)];
        return fuzz_splice(text, size, capacity, t.at, t.size, value, strlen(value));
    }
    case 1:
        if (t.size > sizeof copy)
            return size;
        memcpy(copy, text + t.at, t.size);
        return fuzz_splice(text, size, capacity, to.at, to.size, copy, t.size);
    case 2:
        return fuzz_splice(text, size, capacity, t.at, whole + (end < size && text[end] == ','), "",
                           0);
    case 3: /* repeat it */
        if (whole >= sizeof copy)
            return size;
        copy[0] = ',';
        memcpy(copy + 1, text + t.at, whole);
        return fuzz_splice(text, size, capacity, end, 0, copy, whole + 1);
    case 4: /* copy it elsewhere */
        if (whole >= sizeof copy)
            return size;
        memcpy(copy, text + t.at, whole);
        copy[whole] = ',';
        return fuzz_splice(text, size, capacity, to.at, 0, copy, whole + 1);
    default: {
        bool quoted = text[t.at] == '"' && t.size >= 2;
        size_t at = t.at + quoted, inside = t.size - 2 * (size_t)quoted;
        if (inside > sizeof copy / 2)
            return size;
        memcpy(copy, text + at, inside);
        return fuzz_splice(text, size, capacity, at, inside, copy,
                           LLVMFuzzerMutate(copy, inside, inside + 16));
    }
    }
}

/* The mutator of a target whose input is JSON; one mutation in four changes bytes. */
static inline size_t fuzz_json_or_bytes(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    return fuzz_draw(&seed, 4) ? fuzz_json(data, size, capacity, seed)
                               : LLVMFuzzerMutate(data, size, capacity);
}

/* --- safetensors: 8 bytes with the length of a JSON header, then data --- */

static inline uint64_t fuzz_little(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | from[i];
    return value;
}

static inline void fuzz_put_little(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

/* The largest end in "data_offsets" of a header. */
static inline size_t fuzz_safetensors_end(const uint8_t *header, size_t size, size_t limit)
{
    static const char key[] = "\"data_offsets\":[";
    size_t most = 0;
    for (const uint8_t *at = header;
         (at = memmem(at, size - (size_t)(at - header), key, sizeof key - 1));) {
        uint64_t value[2] = {0};
        at += sizeof key - 1;
        for (int i = 0; i < 2; i++, at++)
            for (; at < header + size && *at >= '0' && *at <= '9' && value[i] < limit; at++)
                value[i] = 10 * value[i] + (uint64_t)(*at - '0');
        if (at > header + size)
            break;
        most = value[1] > most ? value[1] : most;
    }
    return most;
}

/* Change the header, correct its length, and usually that of the data; one mutation in four changes
 * bytes instead. */
static inline size_t fuzz_safetensors(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    uint64_t n = size < 8 ? 0 : fuzz_little(data, 8);
    if (size < 8 || n > size - 8 || capacity < 16 || fuzz_draw(&seed, 4) == 0)
        return LLVMFuzzerMutate(data, size, capacity);
    size_t rest = size - 8 - (size_t)n, room = capacity - 8;
    uint8_t *tail = malloc(rest + 1);
    must(tail != NULL);
    memcpy(tail, data + 8 + n, rest);
    size_t header = fuzz_json(data + 8, (size_t)n, room, seed), want = rest;
    fuzz_put_little(data, header, 8);
    if (fuzz_draw(&seed, 4))
        want = fuzz_safetensors_end(data + 8, header, capacity);
    want = want < room - header ? want : room - header;
    memset(data + 8 + header, 0, want);
    memcpy(data + 8 + header, tail, rest < want ? rest : want);
    free(tail);
    return 8 + header + want;
}

/* Define the mutator of a target whose files are of one of the formats above. */
#define FUZZ_MUTATOR(mutate)                                                                       \
    size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)     \
    {                                                                                              \
        return mutate(data, size, capacity, seed);                                                 \
    }

#ifdef FM_FUZZ
#define FUZZ_MAIN
#else

#define FUZZ_GROWTH_MAX 4096 /* bytes that mutations may add */

/* Make one to eight edits, each of which may remove bytes or add up to 64. */
static inline size_t fuzz_mutate(uint8_t *bytes, size_t size, size_t capacity, uint32_t run)
{
    uint32_t word[4];
    fm_rng_words(word, 1, run, 0);
    for (uint32_t edit = 0, edits = 1 + word[0] % 8; edit < edits && size > 0; edit++) {
        fm_rng_words(word, 1, run, 1 + edit);
        size_t at = (size_t)word[1] % size, n = 1 + (size_t)word[2] % 64;
        switch (word[0] % 6) {
        case 0:
            bytes[at] ^= (uint8_t)(1u << word[2] % 8);
            break;
        case 1:
            bytes[at] = (uint8_t)word[2];
            break;
        case 2: /* a digit: sizes and offsets are text */
            bytes[at] = (uint8_t)('0' + word[2] % 10);
            break;
        case 3:
            size = word[3] % 4 ? size : at;
            break;
        case 4:
            n = n < size - at ? n : size - at;
            memmove(bytes + at, bytes + at + n, size - at - n);
            size -= n;
            break;
        default:
            n = n < size - at ? n : size - at;
            if (size + n > capacity)
                break;
            memmove(bytes + at + n, bytes + at, size - at);
            size += n;
        }
    }
    return size;
}

static uint32_t fuzz_run; /* the number of the current mutation */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity)
{
    return fuzz_mutate(data, size, capacity, fuzz_run);
}

/* Run an input in memory of exactly its size, so that a sanitizer detects any overrun. */
static inline void fuzz_exactly(const uint8_t *bytes, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact)
        abort();
    memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static inline void fuzz_bytes(FILE *f, size_t size, uint32_t runs)
{
    size_t capacity = size + FUZZ_GROWTH_MAX;
    uint8_t *bytes = malloc(capacity), *copy = malloc(capacity);
    if (!bytes || !copy || fread(bytes, 1, size, f) != size)
        abort();
    fuzz_exactly(bytes, size);
    for (uint32_t run = 0; run < runs; run++) {
        memcpy(copy, bytes, size);
        fuzz_run = run;
        fuzz_exactly(copy, LLVMFuzzerCustomMutator
                               ? LLVMFuzzerCustomMutator(copy, size, capacity, run * 2654435761u)
                               : fuzz_mutate(copy, size, capacity, run));
    }
    free(bytes);
    free(copy);
}

/* Replay a file, or all files of a directory; returns their number. */
static inline int fuzz_replay(const char *path, uint32_t runs)
{
    struct stat st;
    int n = 0;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) {
        perror(path);
        exit(1);
    }
    if (S_ISREG(st.st_mode)) {
        fuzz_bytes(f, (size_t)st.st_size, runs);
        n = 1;
    }
    fclose(f);
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (const struct dirent *e; d && (e = readdir(d));) {
        char inside[4096];
        snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            n += fuzz_replay(inside, runs);
    }
    if (d)
        closedir(d);
    return n;
}

#define FUZZ_MAIN                                                                                  \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        uint32_t runs = 0;                                                                         \
        int n = 0;                                                                                 \
        for (int i = 1; i < argc; i++)                                                             \
            if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)                                        \
                runs = (uint32_t)strtoul(argv[++i], NULL, 10);                                     \
            else                                                                                   \
                n += fuzz_replay(argv[i], runs);                                                   \
        printf("%d inputs replayed, %u mutations of each\n", n, runs);                             \
        return n == 0;                                                                             \
    }
#endif

#endif
