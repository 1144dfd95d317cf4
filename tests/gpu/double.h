/*
 * Strict doubles of the CUDA driver, the runtime and cuBLAS, on the host.  The objects that nvcc
 * made, the library's and the check's alike, are linked against them in place of libcudart: every
 * line of host code then runs where there is no GPU.  Kernels are run by name: as they are, in the
 * emulator of tests/unit/cuda_emulator.h, or, the products, by plain loops in double that round h
 * and out once (the ideal implementation, against which the check's own bounds are checked).
 *
 * Strict: what CUDA's documents leave undefined, or what a real driver only sometimes refuses, is
 * refused here or ends the program with a sentence.
 *   memory   device memory is unreadable for the host, and unreadable for all once freed; addresses
 *            are never used again; an allocation ends where a page ends
 *   streams  work runs as late as its stream allows: when the host waits; so do copies and memsets
 *            that the host need not wait for; only streams apart do not wait for the default one
 *   capture  calls that a capture forbids fail and break it
 *   handles  unknown, twice destroyed or never destroyed ones are reported
 *   maps     every rule of cuTensorMapEncodeTiled, alignment of the map itself too
 *   code     a kernel runs where its object has code for the device, or PTX that becomes such
 *
 * FM_DOUBLE holds words: cc=8.0 (compute capability, 9.0), processors=N (3), memory=BYTES (2 GiB),
 * none (no driver), nocublas, notensormap, emulated (the products run as they are, too).
 *
 * double_memory.cc: memory; double_stream.cc: streams, events, captures, graphs; double_launch.cc:
 * kernels and the device; double_kernels.cc: what kernels do; double_cublas.cc: a library of its
 * own, libcublas.so.13.
 */
#ifndef TESTS_GPU_DOUBLE_H
#define TESTS_GPU_DOUBLE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

typedef std::function<void()> double_work;

/* --- double_memory.cc */

/* End the program: the caller did what CUDA does not define. */
[[noreturn]] void double_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* True if [p, p + bytes) is inside one live allocation. */
bool double_is_device(const void *p, size_t bytes);
/* The device's memory opens for what runs on it, and closes for the host again. */
void double_open_memory(const char *who);
void double_close_memory(void);
int double_live_allocations(void);

/* A word of FM_DOUBLE: the text after "name=", "" for a bare word, NULL if it is missing. */
const char *double_word(const char *name);

/* --- double_stream.cc */

/* Put work on a stream, or into the graph that it captures; a cudaError_t. */
int double_enqueue(void *stream, const char *what, double_work work);
/* Run all that a wait for a stream waits for (NULL: for the device). */
void double_drain(void *stream);
/* 0, or why a call that waits or allocates may not be made now (and the capture is broken). */
int double_unsafe(void);
/* Numbers of things that were made and not destroyed. */
int double_live_handles(void);

/* The model of time: bytes moved, and what is left dirty in the L2 cache by them. */
void double_wrote(size_t bytes);
void double_read(size_t bytes);
/* The most bytes of other work's writes that lay in L2 when a clock was started. */
size_t double_dirty_at_clock(void);

/* --- double_launch.cc */

/* Remember an error for cudaGetLastError; returns it. */
int double_error(int code);
/* The countdown of failures: the n-th call from now of any function that can fail does; 0: none. */
void double_fail_after(int calls);
/* Whether this call is the one to fail. */
bool double_fails(const char *function);
/* Calls of functions that can fail, so far. */
int double_calls(void);

/* --- double_kernels.cc: everything that the emulator knows about a kernel */

struct double_kernel {
    const char *name;     /* as c++filt writes it, without "void " and parameters */
    int threads_max;      /* of its launch bounds */
    size_t shared_static; /* bytes */
    /* Copy the arguments and say what a launch does. */
    double_work (*bind)(const unsigned grid[3], unsigned threads, size_t shared, void **arguments);
};
/* NULL: no such kernel. */
const double_kernel *double_find_kernel(const std::string &name);

#endif
