/*
 * Fuzz entry points: each tests/fuzz_*.c defines LLVMFuzzerTestOneInput and ends with
 * FUZZ_MAIN.  With -DFM_FUZZ (clang -fsanitize=fuzzer,address,undefined) the fuzzer
 * brings its main; without, main replays the files and directories' files given as
 * arguments: status 0 once each has passed through, 1 where there was none.
 */
#ifndef FM_TESTS_FUZZ_H
#define FM_TESTS_FUZZ_H

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input as a file that can be opened by name; the same file each time. */
static inline const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

static inline int fuzz_replay(const char *path)
{
    struct stat st;
    int n = 0;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) {
        perror(path);
        exit(1);
    }
    if (S_ISREG(st.st_mode)) {
        uint8_t *data = malloc((size_t)st.st_size + 1);
        size_t size = data ? fread(data, 1, (size_t)st.st_size, f) : 0;
        uint8_t *exact = malloc(size ? size : 1); /* so that a sanitizer sees one byte too far */
        for (size_t i = 0; exact && i < size; i++)
            exact[i] = data[i];
        if (exact)
            LLVMFuzzerTestOneInput(exact, size);
        n = exact != NULL;
        free(exact);
        free(data);
    }
    fclose(f);
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (const struct dirent *e; d && (e = readdir(d));) {
        char inside[4096];
        snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            n += fuzz_replay(inside);
    }
    if (d)
        closedir(d);
    return n;
}

#ifdef FM_FUZZ
#define FUZZ_MAIN
#else
#define FUZZ_MAIN                                                                                  \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        int n = 0;                                                                                 \
        for (int i = 1; i < argc; i++)                                                             \
            n += fuzz_replay(argv[i]);                                                             \
        printf("%d inputs replayed\n", n);                                                         \
        return n == 0;                                                                             \
    }
#endif

#endif
