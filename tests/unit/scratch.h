/*
 * Helpers for tests of files: a directory that is removed at exit, and functions that write files
 * in it.  All of them end the test program on failure.
 */
#ifndef FM_TESTS_SCRATCH_H
#define FM_TESTS_SCRATCH_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch_root[64];

static inline void scratch_check(int ok, const char *what)
{
    if (ok)
        return;
    perror(what);
    exit(1);
}

/* Remove the directory; mkdtemp made its name, so `rm` needs no quoting. */
static inline void scratch_remove(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", scratch_root);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", scratch_root);
}

/* DIR/name, in one of 8 rotating buffers.  The first call creates DIR. */
static inline const char *scratch(const char *name)
{
    static char path[8][512];
    static unsigned turn;
    if (!scratch_root[0]) {
        strcpy(scratch_root, "/tmp/fm-test-XXXXXX");
        scratch_check(mkdtemp(scratch_root) != NULL, "mkdtemp");
        atexit(scratch_remove);
    }
    char *p = path[turn++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", scratch_root, name);
    return p;
}

static inline const char *scratch_write(const char *name, const void *bytes, size_t size)
{
    const char *path = scratch(name);
    FILE *f = fopen(path, "wb");
    scratch_check(f != NULL, path);
    scratch_check(fwrite(bytes, 1, size, f) == size, path);
    scratch_check(fclose(f) == 0, path);
    return path;
}

/* Write a safetensors file: the length, `json`, then `data` zero bytes (as a hole). */
static inline const char *scratch_safetensors(const char *name, const char *json, size_t size,
                                              uint64_t data)
{
    const char *path = scratch(name);
    FILE *f = fopen(path, "wb");
    scratch_check(f != NULL, path);
    for (int i = 0; i < 8; i++)
        fputc((int)((uint64_t)size >> 8 * i & 0xff), f);
    scratch_check(fwrite(json, 1, size, f) == size && fclose(f) == 0, path);
    scratch_check(truncate(path, (off_t)(8 + size + data)) == 0, path);
    return path;
}

/* A file's bytes and a NUL; free() them. */
static inline char *scratch_read(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    scratch_check(f && fseek(f, 0, SEEK_END) == 0, path);
    *size = (size_t)ftell(f);
    rewind(f);
    char *bytes = calloc(*size + 1, 1);
    scratch_check(bytes && fread(bytes, 1, *size, f) == *size, path);
    fclose(f);
    return bytes;
}

/* Whether two files have the same bytes. */
static inline bool scratch_same(const char *a, const char *b)
{
    size_t m, n;
    char *x = scratch_read(a, &m), *y = scratch_read(b, &n);
    bool same = m == n && memcmp(x, y, m) == 0;
    free(x);
    free(y);
    return same;
}

/* Flip a bit of the byte at `at`; below 0 it counts from the end. */
static inline void scratch_flip(const char *path, long at)
{
    int whence = at < 0 ? SEEK_END : SEEK_SET;
    FILE *f = fopen(path, "r+b");
    scratch_check(f && fseek(f, at, whence) == 0, path);
    int c = fgetc(f);
    scratch_check(c != EOF && fseek(f, at, whence) == 0 && fputc(c ^ 0x10, f) != EOF, path);
    scratch_check(fclose(f) == 0, path);
}

/* "dir/name", in one of four rotating buffers. */
static inline const char *scratch_inside(const char *dir, const char *name)
{
    static char path[4][256];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

/* Write a text as DIR/dir/name. */
static inline void scratch_put(const char *dir, const char *name, const char *text)
{
    scratch_write(scratch_inside(dir, name), text, strlen(text));
}

static inline void scratch_mkdir(const char *name)
{
    scratch_check(mkdir(scratch(name), 0777) == 0, name);
}

/* Number of entries of a directory, without . and .. */
static inline int scratch_entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    scratch_check(d != NULL, path);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

/* Peak resident memory of this process in MiB. */
static inline long scratch_peak_mib(void)
{
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib / 1024;
}

#endif
