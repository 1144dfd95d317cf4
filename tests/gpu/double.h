/*
 * Strict fakes (test doubles) of the CUDA driver, the CUDA runtime and cuBLAS, on the host.  The
 * library's and gpu_check's objects, as nvcc compiled them, are linked to these instead of
 * libcudart, so that all host code runs without a GPU.  Kernels are looked up by name and run
 * unchanged in the emulator of tests/unit/cuda_emulator.h, except for the slowest ones
 * (double_kernels.cc).  The matrix products are plain loops in float64 that round h and out once:
 * they are the ideal implementation, by which the error bounds of gpu_check are tested.
 *
 * Strict: behaviour that CUDA's documents leave undefined, or that a real driver refuses only
 * sometimes, is always refused here, or ends the program with a message.
 *
 * - memory: The host cannot access device memory, and nothing can after it is freed.  Addresses are
 *   not reused.  An allocation, rounded up to 256 bytes, ends at the end of a page.
 *
 * - streams: Kernels, memsets and copies to device memory run as late as the stream allows: when
 *   the host waits for them.  (An asynchronous copy from or to host memory is complete when the
 *   call returns.)  Streams wait for the default one unless they are non-blocking.
 *
 * - captures: A call that is forbidden in a capture fails and breaks the capture.
 *
 * - handles: Unknown handles, and those destroyed twice or never, are reported.
 *
 * - maps: Every rule of cuTensorMapEncodeTiled is checked, including the map's own
 *   alignment.
 *
 * - code: A kernel runs only if its object has code for the device, or PTX that compiles to it.
 *
 * FM_DOUBLE is a list of words: cc=8.0 (compute capability; default: 9.0), processors=N (3),
 * memory=BYTES (2 GiB), none (no driver), nocublas, notensormap, emulated (products also run in the
 * emulator).
 *
 * double_memory.cc implements memory; double_stream.cc streams, events, captures and graphs;
 * double_launch.cc launches and the device; double_kernels.cc has the table of kernels.
 * double_cublas.cc is a separate library, libcublas.so.13.
 */
#ifndef TESTS_GPU_DOUBLE_H
#define TESTS_GPU_DOUBLE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

typedef std::function<void()> double_work;

/* --- double_memory.cc */

/* End the program with a message: the caller did something that CUDA leaves undefined. */
[[noreturn]] void double_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* True if [p, p + bytes) is inside one live allocation. */
bool double_is_device(const void *p, size_t bytes);
/* Make the device's memory accessible, with the name of the work for error messages; and make it
 * inaccessible to the host again. */
void double_open_memory(const char *who);
void double_close_memory(void);
int double_live_allocations(void);

/* A word of FM_DOUBLE: the text after "name=", "" for a bare word, NULL if it is missing. */
const char *double_word(const char *name);

/* --- double_stream.cc */

/* Put work on a stream, or into the graph that it captures; a cudaError_t. */
int double_enqueue(void *stream, const char *what, double_work work);
/* Run all work that must be complete when a wait for the stream returns (NULL: for the device). */
void double_drain(void *stream);
/* Called by functions that wait or allocate: 0, or the error if a capture forbids it (which breaks
 * the capture). */
int double_unsafe(void);
/* The number of handles that were created and not destroyed. */
int double_live_handles(void);

/* The model of time: it counts the bytes moved and those that they leave dirty in the L2 cache. */
void double_wrote(size_t bytes);
void double_read(size_t bytes);
/* The largest number of dirty bytes that were in L2 when a measurement started. */
size_t double_dirty_at_clock(void);

/* --- double_launch.cc */

/* Remember an error for cudaGetLastError; returns it. */
int double_error(int code);
/* Let one of the next calls to functions that can fail return an error: number `calls`, counted
 * from 1; 0: none. */
void double_fail_after(int calls);
/* Whether this call is the one that must fail. */
bool double_fails(const char *function);
/* The number of calls so far of functions that can fail. */
int double_calls(void);

/* --- double_kernels.cc: how the emulator runs each kernel */

struct double_kernel {
    const char *name;     /* as c++filt writes it, without "void " and parameters */
    int threads_max;      /* the limit of its launch bounds */
    size_t shared_static; /* bytes */
    /* Copy the arguments and return the work of the launch. */
    double_work (*bind)(const unsigned grid[3], unsigned threads, size_t shared, void **arguments);
};
/* NULL: no such kernel. */
const double_kernel *double_find_kernel(const std::string &name);

#endif
