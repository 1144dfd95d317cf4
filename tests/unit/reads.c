/*
 * A library that is preloaded into a tool (LD_PRELOAD) and counts the tool's reads of one file.
 *
 *     FM_READS_OF=FILE         the file, by any of its names
 *     FM_READS_TOLD=FILE       gets one more line at the end: the number of reads, their bytes, the
 *                              bytes of the file that were read at least once, and the number of
 *                              reads that began before the end of the previous one
 *
 * A file system that fetches on demand with a cache fetches the bytes that were read at least once;
 * without a cache it fetches the bytes of all reads.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct stat wanted;
static bool counting;
static FILE *told_to;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *seen; /* a bit for each byte */
static uint64_t reads, bytes, distinct, back, end;

/* A tool that confines itself closes what it inherited; the file of counts stays open. */
int close_range(unsigned first, unsigned last, int flags)
{
    unsigned kept = told_to ? (unsigned)fileno(told_to) : 0;
    if (!told_to || kept < first || kept > last)
        return (int)syscall(SYS_close_range, first, last, flags);
    if (kept > first && syscall(SYS_close_range, first, kept - 1, flags) != 0)
        return -1;
    return kept < last ? (int)syscall(SYS_close_range, kept + 1, last, flags) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FM_READS_OF");
    const char *told = getenv("FM_READS_TOLD");
    told_to = told ? fopen(told, "ae") : NULL; /* open it now: the sandbox of the tool refuses it
                                                  later */
    counting = path && told_to && stat(path, &wanted) == 0 &&
               (seen = calloc(1, (size_t)wanted.st_size / 8 + 1)) != NULL;
}

__attribute__((destructor)) static void tell(void)
{
    if (!counting)
        return;
    fprintf(told_to, "%llu %llu %llu %llu\n", (unsigned long long)reads, (unsigned long long)bytes,
            (unsigned long long)distinct, (unsigned long long)back);
    fclose(told_to);
}

static void note(uint64_t at, uint64_t n)
{
    pthread_mutex_lock(&lock);
    reads++;
    bytes += n;
    back += at < end;
    end = at + n;
    for (uint64_t i = at; i < end; i++) {
        distinct += !(seen[i / 8] >> (i % 8) & 1);
        seen[i / 8] |= (unsigned char)(1u << (i % 8));
    }
    pthread_mutex_unlock(&lock);
}

ssize_t pread64(int fd, void *dst, size_t n, off_t at)
{
    struct stat st;
    ssize_t got = syscall(SYS_pread64, fd, dst, n, at);
    if (counting && got > 0 && fstat(fd, &st) == 0 && st.st_dev == wanted.st_dev &&
        st.st_ino == wanted.st_ino && at + got <= wanted.st_size)
        note((uint64_t)at, (uint64_t)got);
    return got;
}
