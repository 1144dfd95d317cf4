/*
 * The instructions that C++ cannot express, as functions in inline PTX.  The kernels call these,
 * and tests/unit/cuda_emulator_ptx.h defines the same functions for the host.  First sm_80's
 * asynchronous copies, ldmatrix and mma; then Hopper's (sm_90a) mbarriers, bulk tensor copies and
 * warpgroup products.
 */
#ifndef FM_CLIP_CUDA_PTX_CUH
#define FM_CLIP_CUDA_PTX_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define SHARED_MEMORY(name) extern __shared__ uint8_t name[]

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void shared_store(uint32_t to, int32_t v)
{
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

static __device__ __forceinline__ int32_t shared_load(uint32_t from)
{
    int32_t v;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

static __device__ __forceinline__ void shared_clear16(uint32_t to)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

/* Copy 16 bytes, or write zeros if not `there`. */
static __device__ __forceinline__ void copy16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

static __device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_across(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

template <typename T>
static __device__ __forceinline__ void multiply(float d[4], const uint32_t a[4], uint32_t b0,
                                                uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float d[4], const uint32_t a[4],
                                                        uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__half>(float d[4], const uint32_t a[4], uint32_t b0,
                                                 uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Make the results of barrier_init visible to TMA. */
static __device__ __forceinline__ void barrier_inits_end()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
        "r"(bytes)
        : "memory");
}

static __device__ __forceinline__ bool barrier_try(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

#ifdef FM_CLIP_WATCH
#include <stdio.h>
#define BARRIER_NANOSECONDS_MAX 2000000000ull

static __device__ __forceinline__ uint64_t nanoseconds()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
#endif

/* Wait until the phase of that parity has ended.  If FM_CLIP_WATCH is defined, a wait of more
 * than two seconds prints the role, stage and step, and ends the kernel; otherwise these three
 * arguments are ignored. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity,
                                                    const char *role, uint32_t stage, uint32_t step)
{
#ifdef FM_CLIP_WATCH
    uint64_t began = nanoseconds();
    while (!barrier_try(barrier, parity))
        if (nanoseconds() - began > BARRIER_NANOSECONDS_MAX) {
            printf("hopper: block %u thread %u, %s: waits for stage %u, step %u, parity %u\n",
                   blockIdx.x, threadIdx.x, role, stage, step, parity);
            __trap();
        }
#else
    (void)role, (void)stage, (void)step;
    while (!barrier_try(barrier, parity))
        continue;
#endif
}

/* Copy one box of a two-dimensional map, from element c0 of row c1 on; `barrier` counts the bytes
 * that have arrived. */
static __device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int32_t c0,
                                                int32_t c1, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(barrier)
                 : "memory");
}

/* The cache policy for bytes that are read once: evict them from the L2 cache first. */
static __device__ __forceinline__ uint64_t policy_once()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* copy_box with an L2 cache policy. */
static __device__ __forceinline__ void copy_box_by(uint32_t to, const CUtensorMap *map, int32_t c0,
                                                   int32_t c1, uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(barrier), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Order ordinary stores to shared memory before reads by the tensor cores. */
static __device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A barrier of `threads` threads, independent of __syncthreads. */
static __device__ __forceinline__ void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int REGISTERS> static __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

static __device__ __forceinline__ void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Products write d asynchronously until products_wait, but the compiler does not know this.  It
 * moves no access to d across this fence. */
template <int N> static __device__ __forceinline__ void products_fence(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/*
 * d (64 x N) = A (64 x 16) B (16 x N), or += if add_to is not 0; operands by descriptor; A_ACROSS
 * and B_ACROSS: the operand is stored across the sum. fm_map_d_row and fm_map_d_column give the
 * positions of d's numbers.
 */
#define FM_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FM_D16(i) FM_D4(i), FM_D4(i + 4), FM_D4(i + 8), FM_D4(i + 12)
#define FM_D32(i) FM_D16(i), FM_D16(i + 16)

template <typename T, int N, int A_ACROSS, int B_ACROSS> struct product;

#define FM_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FM_SCALE_16 "12"
#define FM_OPERANDS_16 "%8, %9, yes, 1, 1, %10, %11"
#define FM_LIST_16 FM_D4(0), FM_D4(4)

#define FM_REGISTERS_64                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FM_SCALE_64 "36"
#define FM_OPERANDS_64 "%32, %33, yes, 1, 1, %34, %35"
#define FM_LIST_64 FM_D32(0)

#define FM_REGISTERS_256                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"
#define FM_SCALE_256 "132"
#define FM_OPERANDS_256 "%128, %129, yes, 1, 1, %130, %131"
#define FM_LIST_256 FM_D32(0), FM_D32(32), FM_D32(64), FM_D32(96)

#define FM_PRODUCT(T, NAME, N)                                                                     \
    template <int A_ACROSS, int B_ACROSS> struct product<T, N, A_ACROSS, B_ACROSS> {               \
        static __device__ __forceinline__ void add(float (&d)[N / 2], uint64_t a, uint64_t b,      \
                                                   int add_to)                                     \
        {                                                                                          \
            asm volatile("{\n.reg .pred yes;\nsetp.ne.b32 yes, %" FM_SCALE_##N                     \
                         ", 0;\n"                                                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME           \
                         " {" FM_REGISTERS_##N "}, " FM_OPERANDS_##N ";\n}"                        \
                         : FM_LIST_##N                                                             \
                         : "l"(a), "l"(b), "n"(A_ACROSS), "n"(B_ACROSS), "r"(add_to));             \
        }                                                                                          \
    }

FM_PRODUCT(__nv_bfloat16, "bf16", 16);
FM_PRODUCT(__nv_bfloat16, "bf16", 64);
FM_PRODUCT(__nv_bfloat16, "bf16", 256);
FM_PRODUCT(__half, "f16", 16);
FM_PRODUCT(__half, "f16", 64);
FM_PRODUCT(__half, "f16", 256);

#endif
