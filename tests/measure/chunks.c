/*
 * Measure how much of each file is new if files are cut into content-defined chunks and each chunk
 * is stored once, as on the Hugging Face Hub (Xet; hub-docs, docs/xet/chunking).  Prints one line
 * for each file, in the order of upload: its bytes, those of chunks that are not stored yet, and
 * their share; then the sum.  A folder stands for all files in it.
 *
 *     cc -O2 -I. -o build/chunks tests/measure/chunks.c
 *     build/chunks family.fm exports/10 exports/20
 *
 * Chunk boundaries: each byte updates a hash, h = 2 h + table[byte], and a chunk ends where the
 * highest 16 bits of h are zero, with a minimum of 8 KiB and a maximum of 128 KiB; h is reset at
 * each boundary.  The table is drawn from a fixed seed; another table would give other boundaries,
 * equally often.
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LEAST ((size_t)8 << 10)
#define MOST ((size_t)128 << 10)
#define MASK UINT64_C(0xFFFF000000000000)

static uint64_t table[256];
static struct set {
    uint64_t *hash; /* 0: free */
    size_t count, room;
} seen;
static struct {
    uint64_t bytes, added;
} all;

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "chunks: %s ", what);
    perror(path);
    exit(1);
}

/* A 64-bit step of splitmix (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Add a hash to the set; true if it was new. */
static bool add(uint64_t hash)
{
    if (2 * (seen.count + 1) > seen.room) {
        struct set old = seen;
        seen = (struct set){.room = old.room ? 2 * old.room : 1 << 16};
        seen.hash = calloc(seen.room, sizeof *seen.hash);
        if (!seen.hash)
            fail("no memory for", "chunks");
        for (size_t i = 0; i < old.room; i++)
            if (old.hash[i])
                add(old.hash[i]);
        free(old.hash);
    }
    size_t at = hash & (seen.room - 1);
    for (; seen.hash[at]; at = (at + 1) & (seen.room - 1))
        if (seen.hash[at] == hash)
            return false;
    seen.hash[at] = hash;
    seen.count++;
    return true;
}

/* Length of the chunk at the beginning of `bytes`, which holds at least MOST bytes or the rest of
 * the file. */
static size_t cut(const unsigned char *bytes, size_t size)
{
    uint64_t h = 0;
    for (size_t i = 0; i < size && i < MOST; i++) {
        h = (h << 1) + table[bytes[i]];
        if (i + 1 >= LEAST && !(h & MASK))
            return i + 1;
    }
    return size < MOST ? size : MOST;
}

/* A 64-bit hash that identifies a chunk; never 0. */
static uint64_t hash_of(const unsigned char *bytes, size_t size)
{
    uint64_t state = size, h = 0;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, size - i < 8 ? size - i : 8);
        state ^= word;
        h ^= mix(&state);
    }
    return h | 1;
}

static void measure(const char *path)
{
    static unsigned char buffer[8 * MOST];
    FILE *f = fopen(path, "rb");
    if (!f)
        fail("cannot open", path);
    uint64_t bytes = 0, added = 0;
    size_t have = 0, got;
    do {
        got = fread(buffer + have, 1, sizeof buffer - have, f);
        have += got;
        size_t at = 0;
        while (have - at >= MOST || (got == 0 && at < have)) {
            size_t n = cut(buffer + at, have - at);
            added += add(hash_of(buffer + at, n)) ? n : 0;
            bytes += n;
            at += n;
        }
        memmove(buffer, buffer + at, have -= at);
    } while (got > 0);
    if (ferror(f))
        fail("cannot read", path);
    fclose(f);
    all.bytes += bytes;
    all.added += added;
    printf("%14llu %14llu %6.2f %%  %s\n", (unsigned long long)bytes, (unsigned long long)added,
           bytes ? 100.0 * (double)added / (double)bytes : 0.0, path);
}

static void walk(const char *path)
{
    struct stat st;
    struct dirent **entry;
    if (stat(path, &st) != 0)
        fail("cannot examine", path);
    if (!S_ISDIR(st.st_mode)) {
        measure(path);
        return;
    }
    int n = scandir(path, &entry, NULL, alphasort);
    if (n < 0)
        fail("cannot list", path);
    for (int i = 0; i < n; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.')
            walk(name);
        free(entry[i]);
    }
    free(entry);
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    for (int i = 0; i < 256; i++)
        table[i] = mix(&seed);
    for (int i = 1; i < argc; i++)
        walk(argv[i]);
    printf("%14llu %14llu %6.2f %%  all\n", (unsigned long long)all.bytes,
           (unsigned long long)all.added,
           all.bytes ? 100.0 * (double)all.added / (double)all.bytes : 0.0);
    return 0;
}
