/*
 * Two products of oneDNN: sgemm, and a matmul of bfloat16 operands through descriptors
 * whose names differ between its versions 2 and 3.
 */
#include "kernels/cpu/dnnl.h"

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kernels/ops/kernels.h"
#include "lib/base/fatal.h"
#include "lib/base/isa.h"
#include "lib/base/mem.h"

#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP && DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error "oneDNN must be built with OpenMP or sequential: other runtimes choose threads by themselves"
#endif

#define PROBE_BYTES ((size_t)16 << 20) /* several times the memory that compilation needs */
#define LARGE 128                      /* size of a product whose operands are packed */

/* From libgomp, declared here because omp.h is not in every compiler's path. */
extern void omp_set_num_threads(int threads);

static dnnl_status_t limited = dnnl_success;

/* FM_ISA also applies to oneDNN, which accepts the limit only before its first use.  Without
 * FM_ISA, ONEDNN_MAX_CPU_ISA is in effect. */
static void limit_isa(void)
{
#if defined(__x86_64__)
    static const dnnl_cpu_isa_t most[] = {[FM_ISA_BASE] = dnnl_cpu_isa_sse41,
                                          [FM_ISA_AVX2] = dnnl_cpu_isa_avx2,
                                          [FM_ISA_AVX512] = dnnl_cpu_isa_avx512_core_bf16};
    if (fm_isa_limit() < FM_ISA_AMX)
        limited = dnnl_set_max_cpu_isa(most[fm_isa_limit()]);
#endif
}

/* Call before every use.  The number of OpenMP threads is a per-thread setting. */
static void begin_use(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local bool done;
    if (done)
        return;
    pthread_once(&once, limit_isa);
    fm_fatal_watch("oneDNN's threads");
    omp_set_num_threads(1);
    fm_fatal_unwatch();
    done = true;
}

static void expect(dnnl_status_t status, const char *what, int M, int N, int K)
{
    if (status == dnnl_success)
        return;
    fm_fatal_memory("oneDNN refused the %s of a %d x %d x %d product (status %d): no memory", what,
                    M, N, K, (int)status);
}

void fm_dnnl_sgemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                   const float *B, int ldb, float beta, float *C, int ldc)
{
    begin_use();
    if (K == 0) { /* oneDNN does not write C then; beta is 0 or 1 */
        for (int i = 0; i < M && beta == 0; i++)
            memset(C + (size_t)i * ldc, 0, (size_t)N * sizeof *C);
        return;
    }
    fm_fatal_watch("oneDNN's product");
    dnnl_status_t s =
        dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    fm_fatal_unwatch();
    expect(s, "computation", M, N, K);
}

/*
 * oneDNN compiles its float32 kernels at the first product that needs them, without checking that
 * memory was allocated: it writes through null pointers, and its exceptions are not caught.  So all
 * kernels are compiled early, on one thread, after checking that there is enough memory.  After
 * that a product only allocates memory for packed operands, and reports failure.  (bfloat16
 * products are compiled for each shape; lib/base/fatal.h handles failures there.)
 */
static void compile_kernels(void)
{
    static const struct {
        int M, N, K;
    } size[] = {{1, 32, 32}, {32, 1, 32}, {2, 2, 32},   {2, 32, 32},
                {32, 2, 32}, {32, 32, 2}, {48, 48, 48}, {LARGE, LARGE, LARGE}};
    static float zeros[LARGE * LARGE], sums[LARGE * LARGE];
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int form = 0; form < 16; form++) {
            bool ta = form & 1, tb = form & 2;
            int M = size[i].M, N = size[i].N, K = size[i].K;
            fm_dnnl_sgemm(ta, tb, M, N, K, form & 4 ? 0.5f : 1.0f, zeros, ta ? M : K, zeros,
                          tb ? K : N, form & 8 ? 1.0f : 0.0f, sums, N);
        }
}

int fm_dnnl_prepare(struct fm_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!fm_memory_left(PROBE_BYTES))
        return fm_fail(err, FM_ENOMEM, "no memory for oneDNN's kernels (%zu bytes)", PROBE_BYTES);
    begin_use();
    if (limited != dnnl_success)
        return fm_fail(err, FM_EDEVICE,
                       "this oneDNN cannot be limited to FM_ISA=%s (status %d); unset FM_ISA",
                       fm_isa_name(fm_isa_limit()), (int)limited);
    pthread_once(&once, compile_kernels);
    return FM_OK;
}

static dnnl_engine_t engine;
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void make_engine(void)
{
    fm_fatal_watch("oneDNN's engine");
    expect(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine", 0, 0, 0);
    fm_fatal_unwatch();
}

/* One operand: its shape, and the strides of its rows and columns. */
struct matrix {
    dnnl_dims_t dims, strides;
    dnnl_data_type_t type;
};

static struct matrix describe(bool transposed, int rows, int cols, int ld, dnnl_data_type_t type)
{
    struct matrix m = {.dims = {rows, cols}, .type = type};
    m.strides[0] = transposed ? 1 : ld;
    m.strides[1] = transposed ? ld : 1;
    return m;
}

/* The matmul descriptor and the descriptors of its three operands, created and freed together. */
#if DNNL_VERSION_MAJOR >= 3
struct product {
    dnnl_memory_desc_t memory[3];
    dnnl_primitive_desc_t desc;
};

static dnnl_status_t make_product(struct product *p, const struct matrix m[3])
{
    for (int i = 0; i < 3; i++) {
        dnnl_status_t s = dnnl_memory_desc_create_with_strides(&p->memory[i], 2, m[i].dims,
                                                               m[i].type, m[i].strides);
        if (s != dnnl_success)
            return s;
    }
    return dnnl_matmul_primitive_desc_create(&p->desc, engine, p->memory[0], p->memory[1], NULL,
                                             p->memory[2], NULL);
}

static dnnl_status_t make_memory(dnnl_memory_t *memory, struct product *p, int i, void *data)
{
    return dnnl_memory_create(memory, p->memory[i], engine, data);
}

static void free_product(struct product *p)
{
    for (int i = 0; i < 3; i++)
        if (p->memory[i])
            dnnl_memory_desc_destroy(p->memory[i]);
    if (p->desc)
        dnnl_primitive_desc_destroy(p->desc);
}
#else
struct product {
    dnnl_memory_desc_t memory[3];
    dnnl_primitive_desc_t desc;
};

static dnnl_status_t make_product(struct product *p, const struct matrix m[3])
{
    dnnl_matmul_desc_t matmul;
    for (int i = 0; i < 3; i++) {
        dnnl_status_t s =
            dnnl_memory_desc_init_by_strides(&p->memory[i], 2, m[i].dims, m[i].type, m[i].strides);
        if (s != dnnl_success)
            return s;
    }
    dnnl_status_t s =
        dnnl_matmul_desc_init(&matmul, &p->memory[0], &p->memory[1], NULL, &p->memory[2]);
    if (s != dnnl_success)
        return s;
    return dnnl_primitive_desc_create(&p->desc, &matmul, NULL, engine, NULL);
}

static dnnl_status_t make_memory(dnnl_memory_t *memory, struct product *p, int i, void *data)
{
    return dnnl_memory_create(memory, &p->memory[i], engine, data);
}

static void free_product(struct product *p)
{
    if (p->desc)
        dnnl_primitive_desc_destroy(p->desc);
}
#endif

/* oneDNN caches compiled primitives, so creating one again is cheap. */
static dnnl_status_t run_product(struct product *p, void *const data[3])
{
    static const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    dnnl_exec_arg_t args[3] = {{0}};
    dnnl_primitive_t primitive = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_status_t s = dnnl_primitive_create(&primitive, p->desc);
    if (s == dnnl_success)
        s = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    for (int i = 0; i < 3 && s == dnnl_success; i++) {
        args[i].arg = names[i];
        s = make_memory(&args[i].memory, p, i, data[i]);
    }
    if (s == dnnl_success)
        s = dnnl_primitive_execute(primitive, stream, 3, args);
    if (s == dnnl_success)
        s = dnnl_stream_wait(stream);
    for (int i = 0; i < 3; i++)
        if (args[i].memory)
            dnnl_memory_destroy(args[i].memory);
    if (stream)
        dnnl_stream_destroy(stream);
    if (primitive)
        dnnl_primitive_destroy(primitive);
    return s;
}

void fm_dnnl_bf16gemm(bool ta, bool tb, int M, int N, int K, const uint16_t *A, int lda,
                      const uint16_t *B, int ldb, float *C)
{
    begin_use();
    pthread_once(&engine_once, make_engine);
    struct product p = {0};
    const struct matrix m[3] = {describe(ta, M, K, lda, dnnl_bf16),
                                describe(tb, K, N, ldb, dnnl_bf16),
                                describe(false, M, N, N, dnnl_f32)};
    fm_fatal_watch("oneDNN's bfloat16 product"); /* it compiles for every shape */
    expect(make_product(&p, m), "description", M, N, K);
    expect(run_product(&p, (void *const[3]){(void *)A, (void *)B, C}), "computation", M, N, K);
    free_product(&p);
    fm_fatal_unwatch();
}

bool fm_dnnl_has_bf16(void)
{
    begin_use();
    pthread_once(&engine_once, make_engine);
    struct product p = {0};
    const struct matrix m[3] = {describe(false, 2, 2, 2, dnnl_bf16),
                                describe(false, 2, 2, 2, dnnl_bf16),
                                describe(false, 2, 2, 2, dnnl_f32)};
    fm_fatal_watch("oneDNN's bfloat16 product");
    dnnl_status_t s = make_product(&p, m);
    if (s == dnnl_out_of_memory)
        expect(s, "description", 2, 2, 2);
    fm_fatal_unwatch();
    free_product(&p);
    return s == dnnl_success;
}

bool fm_ops_dnnl_product(bool bf16, bool tb, int M, int N, int K, const void *A, int lda,
                         const void *B, int ldb, float *C)
{
    if (bf16 && !fm_dnnl_has_bf16())
        return false;
    if (bf16)
        fm_dnnl_bf16gemm(false, tb, M, N, K, A, lda, B, ldb, C);
    else
        fm_dnnl_sgemm(false, tb, M, N, K, 1, A, lda, B, ldb, 0, C, N);
    return true;
}

/* Bits of dnnl_cpu_isa_t, widest first; the names of 2.x and 3.x differ, these bits do not. */
static const char *isa_name(unsigned isa)
{
    static const struct {
        unsigned bits;
        const char *name;
    } known[] = {{0x3e7, "avx512_core_amx"},
                 {0x1ef, "avx512_core_fp16"},
                 {0xe7, "avx512_core_bf16"},
                 {0x67, "avx512_core_vnni"},
                 {0x27, "avx512_core"},
                 {0x7, "avx2"},
                 {0x3, "avx"},
                 {0x1, "sse41"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((isa & known[i].bits) == known[i].bits)
            return known[i].name;
    return "generic";
}

void fm_ops_dnnl_version(char *text, int size)
{
    begin_use();
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, (size_t)size, "%d.%d.%d %s", v->major, v->minor, v->patch,
             isa_name((unsigned)dnnl_get_effective_cpu_isa()));
}
