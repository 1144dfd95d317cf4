/* Fake device memory: pages that only running work can access. */
#include "tests/gpu/double.h"

#include <cuda_runtime.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <vector>

static const size_t arena_bytes = (size_t)256 << 30, page = 4096, grain = 256;
static const size_t touched_max = (size_t)1 << 20; /* bytes that a memset writes at most */

struct span {
    uintptr_t first; /* the first address of its pages */
    size_t mapped, bytes;
};

static uintptr_t arena, next;
static std::map<uintptr_t, span> live;
static size_t used;
static const char *running; /* the work that may access the memory now */

void double_die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "double: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    fflush(stdout);
    _exit(70);
}

const char *double_word(const char *name)
{
    const char *at = getenv("FM_DOUBLE");
    size_t n = strlen(name);
    while (at && *at) {
        if (!strncmp(at, name, n) && (at[n] == '=' || at[n] == ' ' || !at[n]))
            return at[n] == '=' ? at + n + 1 : "";
        at = strchr(at, ' ');
        at = at ? at + 1 : at;
    }
    return nullptr;
}

static void on_fault(int, siginfo_t *info, void *)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    if (at >= arena && at < arena + arena_bytes)
        double_die("%s touches %p, %s", running ? running : "the host", info->si_addr,
                   running ? "which no live allocation holds" : "device memory");
    double_die("%s touches %p, which belongs to no allocation", running ? running : "the host",
               info->si_addr);
}

static void begin()
{
    struct sigaction action = {};
    if (arena)
        return;
    void *p =
        mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        double_die("no addresses for the device's memory");
    arena = (uintptr_t)p;
    next = arena + page;
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
}

static size_t memory_bytes()
{
    const char *given = double_word("memory");
    return given ? (size_t)atoll(given) : (size_t)2 << 30;
}

static void protect(const span &s, int how)
{
    if (mprotect((void *)s.first, s.mapped, how))
        double_die("mprotect failed");
}

void double_open_memory(const char *who)
{
    bool open = running;
    running = who;
    if (open)
        return;
    for (const auto &at : live)
        protect(at.second, PROT_READ | PROT_WRITE);
}

void double_close_memory(void)
{
    for (const auto &at : live)
        protect(at.second, PROT_NONE);
    running = nullptr;
}

bool double_is_device(const void *p, size_t bytes)
{
    auto at = live.upper_bound((uintptr_t)p);
    if (at == live.begin())
        return false;
    --at;
    return (uintptr_t)p + bytes <= at->first + at->second.bytes;
}

int double_live_allocations(void)
{
    return (int)live.size();
}

/* Whether any byte of a range is device memory, allocated or freed. */
static bool touches_device(const void *p, size_t bytes)
{
    return arena && (uintptr_t)p < arena + arena_bytes && (uintptr_t)p + bytes > arena;
}

extern "C" cudaError_t cudaMalloc(void **p, size_t bytes)
{
    begin();
    if (!p || double_fails("cudaMalloc"))
        return (cudaError_t)double_error(p ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
    if (int code = double_unsafe())
        return (cudaError_t)double_error(code);
    *p = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    size_t rounded = (bytes + grain - 1) / grain * grain;
    size_t mapped = (rounded + page - 1) / page * page;
    if (used + bytes > memory_bytes() || next + mapped + page > arena + arena_bytes)
        return (cudaError_t)double_error(cudaErrorMemoryAllocation);
    span s = {next, mapped, bytes};
    uintptr_t start = next + mapped - rounded;
    next += mapped + page;
    used += bytes;
    live[start] = s;
    *p = (void *)start;
    return cudaSuccess;
}

extern "C" cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    if (int code = double_unsafe())
        return (cudaError_t)double_error(code);
    auto at = live.find((uintptr_t)p);
    if (at == live.end())
        double_die("cudaFree of %p, which is not an allocation%s", p,
                   touches_device(p, 1) ? " any more" : "");
    double_drain(nullptr);
    protect(at->second, PROT_NONE);
    madvise((void *)at->second.first, at->second.mapped, MADV_DONTNEED);
    used -= at->second.bytes;
    live.erase(at);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *all = memory_bytes();
    *left = *all - used;
    return cudaSuccess;
}

/* Check both sides of a copy against its kind. */
static int check_sides(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    bool to_device = double_is_device(to, bytes), from_device = double_is_device(from, bytes);
    if ((!to_device && touches_device(to, bytes)) || (!from_device && touches_device(from, bytes)))
        double_die("a copy of %zu bytes to %p from %p leaves its allocation", bytes, to, from);
    bool good =
        kind == cudaMemcpyDefault ||
        (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
         from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
    return good ? cudaSuccess : cudaErrorInvalidValue;
}

static void copy_now(void *to, const void *from, size_t bytes)
{
    double_open_memory("a copy");
    memcpy(to, from, bytes);
    double_close_memory();
    if (double_is_device(to, bytes))
        double_wrote(bytes);
}

/* A copy to the device reads host memory at once, and writes it to the device in the order of the
 * default stream. */
extern "C" cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    if (double_fails("cudaMemcpy"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (int code = double_unsafe())
        return (cudaError_t)double_error(code);
    if (bytes == 0)
        return cudaSuccess;
    if (int code = check_sides(to, from, bytes, kind))
        return (cudaError_t)double_error(code);
    if (double_is_device(to, bytes)) {
        bool inside = double_is_device(from, bytes);
        std::vector<uint8_t> taken((const uint8_t *)from, (const uint8_t *)from + !inside * bytes);
        return (cudaError_t)double_error(double_enqueue(nullptr, "a copy", [=]() {
            memcpy(to, inside ? from : taken.data(), bytes);
            double_wrote(bytes);
        }));
    }
    double_drain(cudaStreamLegacy);
    copy_now(to, from, bytes);
    return cudaSuccess;
}

/* Host memory is pageable here: copies from and to it are complete when the call returns.  In a
 * capture they are refused, because a graph would repeat them at every launch, which is never
 * intended. */
extern "C" cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                       cudaMemcpyKind kind, cudaStream_t stream)
{
    if (double_fails("cudaMemcpyAsync"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (bytes == 0)
        return cudaSuccess;
    if (int code = check_sides(to, from, bytes, kind))
        return (cudaError_t)double_error(code);
    if (double_is_device(to, bytes) && double_is_device(from, bytes))
        return (cudaError_t)double_error(double_enqueue(
            stream, "a copy", [=]() { memcpy(to, from, bytes), double_wrote(bytes); }));
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (stream && (cudaStreamIsCapturing(stream, &status), status != cudaStreamCaptureStatusNone))
        return (cudaError_t)double_error(double_unsafe());
    double_drain(stream);
    copy_now(to, from, bytes);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (double_fails("cudaMemsetAsync"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (bytes > 0 && !double_is_device(to, bytes))
        double_die("a memset of %zu bytes at %p leaves its allocation", bytes, to);
    size_t touched = bytes < touched_max ? bytes : touched_max;
    return (cudaError_t)double_error(double_enqueue(
        stream, "a memset", [=]() { memset(to, value, touched), double_wrote(bytes); }));
}

extern "C" cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    if (int code = double_unsafe())
        return (cudaError_t)double_error(code);
    return cudaMemsetAsync(to, value, bytes, nullptr);
}
