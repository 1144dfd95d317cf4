/*
 * The kernels on the fake device.  They run unchanged, thread by thread, in the emulator, with
 * these exceptions: by default the two products are the ideal implementation (exact sums; h and y
 * are rounded once), define_h is a plain loop, fill_bits fills fewer elements, and read_all only
 * counts bytes.
 */
#include "tests/gpu/double.h"
#include "tests/unit/cuda_emulator_ptx.h"

#include <tuple>

#include "kernels/clip/cuda/clip_cuda_blas.cuh"
#define read_all __attribute__((unused)) read_all
#include "kernels/clip/cuda/clip_cuda_gpu.cuh"
#undef read_all
#include "kernels/clip/cuda/clip_cuda_hopper.cuh"
#include "kernels/clip/cuda/clip_cuda_mma.cuh"
#include "kernels/clip/cuda/clip_cuda_route.cuh"
#include "tests/gpu/gpu_probe.cuh"
#define define_h __attribute__((unused)) define_h
#include "tests/gpu/gpu_kernels.cuh"
#undef define_h

/* TOGETHER: threads that synchronise, run as coroutines.  APART: threads that do not, run
 * one after the other.  FEW_APART: kernels with grid-stride loops, whose result does not depend on
 * the number of threads, run with one thread. */
enum manner { TOGETHER, APART, FEW_APART };

struct launched {
    emu_dim grid;
    unsigned threads;
    size_t shared;
};

static void run_as(enum manner manner, const launched &l, const std::function<void()> &kernel)
{
    switch (manner) {
    case TOGETHER:
        emu_launch(l.grid, l.threads, l.shared, kernel);
        break;
    case APART:
        emu_launch_apart(l.grid, l.threads, kernel);
        break;
    case FEW_APART:
        emu_launch_apart({1, 1, 1}, 1, kernel);
        break;
    }
}

/* --- the pointers of a job must be device memory of sufficient size */

static void demand(const void *p, size_t bytes, const char *what)
{
    if (!double_is_device(p, bytes))
        double_die("%s of a job, %zu bytes at %p, is not in the device's memory", what, bytes, p);
}

static void check_job(const fm_cuda_job &j)
{
    size_t E = (size_t)j.E, S = (size_t)j.slots, H = (size_t)j.H, n = (size_t)j.n;
    size_t size = j.type == FM_CLIP_F32 ? 4 : 2;
    demand(j.row0, E * 8, "row0");
    demand(j.cap, E * 4, "cap");
    demand(j.widths, (size_t)j.B * E * 4, "widths");
    demand(j.faults, 4, "faults");
    demand(j.ids, S * (j.ids_type == FM_CLIP_I64 ? 8 : 4), "ids");
    demand(j.weights, S * 4, "weights");
    demand(j.totals, sizeof *j.totals, "totals");
    if (n > 0)
        demand(j.hidden, ((n - 1) * (size_t)j.hidden_stride + H) * size, "hidden");
    if (n > 0)
        demand(j.out, ((n - 1) * (size_t)j.out_stride + H) * size, "out");
    if (j.budgets)
        demand(j.budgets, n * 4, "budgets");
    else
        demand(j.budget, j.budget_type == FM_CLIP_I64 ? 8 : 4, "budget");
}

template <typename P> static void check_argument(const P &)
{
}
template <> void check_argument(const fm_cuda_job &job)
{
    check_job(job);
}

template <typename... P, size_t... I>
static std::tuple<P...> read_arguments(void **arguments, std::index_sequence<I...>)
{
    return std::tuple<P...>(*(const P *)arguments[I]...);
}

template <auto KERNEL> struct binding;
template <typename... P, void (*KERNEL)(P...)> struct binding<KERNEL> {
    template <enum manner MANNER>
    static double_work bind(const unsigned grid[3], unsigned threads, size_t shared,
                            void **arguments)
    {
        launched l = {{grid[0], grid[1], grid[2]}, threads, shared};
        auto given = read_arguments<P...>(arguments, std::index_sequence_for<P...>());
        return [=]() {
            std::apply([](const P &...p) { (check_argument(p), ...); }, given);
            run_as(MANNER, l, [&]() { std::apply(KERNEL, given); });
        };
    }
};

/* --- the ideal products */

template <typename T> static double exact(const void *base, int64_t i)
{
    return to_float(((const T *)base)[i]);
}

template <typename T> static void ideal_h(const fm_cuda_job &j, const fm_cuda_group &g)
{
    size_t H = (size_t)j.H;
    std::vector<double> x(H);
    for (int32_t r = g.row; r < g.row + g.rows; r++) {
        for (size_t i = 0; i < H; i++)
            x[i] = exact<T>(j.x, r * (int64_t)H + (int64_t)i);
        for (int32_t c = 0; c < fm_cuda_padded(g.width); c++) {
            double gate = 0, up = 0;
            const T *w = (const T *)j.gate_up + 2 * (j.row0[g.expert] + c) * (int64_t)H;
            for (size_t i = 0; c < g.width && i < H; i++) {
                gate += x[i] * (double)to_float(w[i]);
                up += x[i] * (double)to_float(w[H + i]);
            }
            double h = gate / (1 + exp(-gate)) * up;
            ((T *)j.h)[(int64_t)r * j.channels_padded + c] = from_float<T>((float)h);
        }
    }
}

template <typename T> static void ideal_y(const fm_cuda_job &j, const fm_cuda_group &g)
{
    size_t H = (size_t)j.H;
    int32_t part = fm_cuda_split_channels(g.width, g.large);
    std::vector<double> sum(H);
    for (int32_t s = 0; s < g.splits; s++)
        for (int32_t r = 0; r < g.rows; r++) {
            std::fill(sum.begin(), sum.end(), 0);
            for (int32_t c = s * part; c < std::min(s * part + part, g.width); c++) {
                double h = exact<T>(j.h, (int64_t)(g.row + r) * j.channels_padded + c);
                const T *w = (const T *)j.down + (j.row0[g.expert] + c) * (int64_t)H;
                for (size_t i = 0; i < H; i++)
                    sum[i] += h * (double)to_float(w[i]);
            }
            float *y = j.y + ((int64_t)g.y + s * g.rows + r) * (int64_t)H;
            for (size_t i = 0; i < H; i++)
                y[i] = (float)sum[i];
        }
}

template <typename T, int PRODUCT> static void ideal(const fm_cuda_job &j)
{
    for (int32_t a = 0; a < j.totals->groups; a++)
        if (PRODUCT == 1)
            ideal_h<T>(j, j.groups[a]);
        else
            ideal_y<T>(j, j.groups[a]);
}

/* A product of any path: its first argument is the job. */
template <auto KERNEL, typename T, int PRODUCT>
static double_work bind_product(const unsigned grid[3], unsigned threads, size_t shared,
                                void **arguments)
{
    fm_cuda_job job = *(const fm_cuda_job *)arguments[0];
    if (double_word("emulated"))
        return binding<KERNEL>::template bind<TOGETHER>(grid, threads, shared, arguments);
    return [=]() {
        size_t rows = (size_t)job.slots * sizeof(T);
        check_job(job);
        demand(job.x, rows * (size_t)job.H, "x");
        demand(job.h, rows * (size_t)job.channels_padded, "h");
        ideal<T, PRODUCT>(job);
    };
}

/* Run fill_bits for at most 2^16 elements: no others are read. */
static double_work bind_fill(const unsigned grid[3], unsigned threads, size_t shared,
                             void **arguments)
{
    int64_t n = std::min<int64_t>(*(int64_t *)arguments[1], 1 << 16);
    void *fewer[] = {arguments[0], &n};
    return binding<fill_bits>::bind<FEW_APART>(grid, threads, shared, fewer);
}

/* The result of read_all is not used: only its time and its use of the cache are modelled. */
static double_work bind_read(const unsigned[3], unsigned, size_t, void **arguments)
{
    int64_t n = *(int64_t *)arguments[1];
    return [=]() { double_read((size_t)n * sizeof(uint4)); };
}

/* define_h as plain loops: emulating its warp sums would take most of the time. */
static void define_h_alone(double *h, const void *hidden, const void *gate_up, int type, int H,
                           int I, const int64_t *row0, const int32_t *expert, const int32_t *width,
                           const int32_t *token, int slots)
{
    for (int64_t at = 0; at < (int64_t)slots * I; at++) {
        int64_t i = at / I, c = at % I, row = 2 * (row0[expert[i]] + c) * H;
        double g = 0, u = 0;
        for (int64_t j = 0; c < width[i] && j < H; j++) {
            double x = number_at(hidden, type, (int64_t)token[i] * H + j);
            g += x * number_at(gate_up, type, row + j);
            u += x * number_at(gate_up, type, row + H + j);
        }
        h[at] = c < width[i] ? g / (1 + exp(-g)) * u : 0;
    }
}

/* --- the table of kernels */

#define TEXT(...) #__VA_ARGS__
#define KERNEL(threads, manner, ...)                                                               \
    {                                                                                              \
        TEXT(__VA_ARGS__), threads, 0, binding<__VA_ARGS__>::bind<manner>                          \
    }
#define OF_TYPES(row) row(float), row(__half), row(__nv_bfloat16)
#define PLAIN(T, P)                                                                                \
    {                                                                                              \
        "plain_product<" #T ", " #P ">", PLAIN_THREADS, 12800,                                     \
            bind_product<plain_product<T, P>, T, P>                                                \
    }
#define MMA(T, P)                                                                                  \
    {                                                                                              \
        "mma_product<" #T ", " #P ">", MMA_THREADS, 0, bind_product<mma_product<T, P>, T, P>       \
    }
#define HOPPER(T, P)                                                                               \
    {                                                                                              \
        "hopper_product<" #T ", " #P ">", HOPPER_THREADS, 0,                                       \
            bind_product<hopper_product<T, P>, T, P>                                               \
    }
#define COMBINE(T) KERNEL(256, APART, combine_rows<T, 4>), KERNEL(256, APART, combine_rows<T, 1>)
#define PROBE(T, N, A, B)                                                                          \
    {                                                                                              \
        "probe_product<" #T ", " #N ", " #A ", " #B ">", PROBE_THREADS, 0,                         \
            binding<probe_product<T, N, A, B>>::template bind<TOGETHER>                            \
    }
#define PROBES(T)                                                                                  \
    PROBE(T, 16, 0, 0), PROBE(T, 16, 1, 0), PROBE(T, 64, 0, 0), PROBE(T, 64, 1, 0),                \
        PROBE(T, 256, 0, 0), PROBE(T, 256, 0, 1)

static const double_kernel all[] = {
    KERNEL(ROUTE_BLOCK, TOGETHER, route_one),
    KERNEL(256, FEW_APART, route_count),
    KERNEL(32, TOGETHER, route_offsets),
    KERNEL(256, TOGETHER, route_place),
    KERNEL(ROUTE_BLOCK, TOGETHER, route_plan),
    KERNEL(256, TOGETHER, route_count_parts),
    KERNEL(ROUTE_BLOCK, TOGETHER, route_part_offsets),
    KERNEL(256, TOGETHER, route_seat_parts),
    KERNEL(256, TOGETHER, route_close),
    KERNEL(256, FEW_APART, gather_rows<uint4>),
    KERNEL(256, FEW_APART, gather_rows<uint32_t>),
    KERNEL(256, FEW_APART, gather_rows<uint16_t>),
    OF_TYPES(COMBINE),
    PLAIN(float, 1),
    PLAIN(float, 2),
    PLAIN(__half, 1),
    PLAIN(__half, 2),
    PLAIN(__nv_bfloat16, 1),
    PLAIN(__nv_bfloat16, 2),
    MMA(__half, 1),
    MMA(__half, 2),
    MMA(__nv_bfloat16, 1),
    MMA(__nv_bfloat16, 2),
    HOPPER(__half, 1),
    HOPPER(__half, 2),
    HOPPER(__nv_bfloat16, 1),
    HOPPER(__nv_bfloat16, 2),
    KERNEL(1024, FEW_APART, gate_rows<__half>),
    KERNEL(1024, FEW_APART, gate_rows<__nv_bfloat16>),
    KERNEL(1024, FEW_APART, scatter_rows<__half>),
    KERNEL(1024, FEW_APART, scatter_rows<__nv_bfloat16>),
    KERNEL(1024, FEW_APART, round_rows<__half>),
    KERNEL(1024, FEW_APART, round_rows<__nv_bfloat16>),
    {"fill_bits", 1024, 0, bind_fill},
    {"read_all", 1024, 0, bind_read},
    KERNEL(1024, FEW_APART, fill_numbers),
    {"probe_box", PROBE_THREADS, 0, binding<probe_box>::bind<TOGETHER>},
    PROBES(__half),
    PROBES(__nv_bfloat16),
    {"define_h", 1024, 0, binding<define_h_alone>::bind<FEW_APART>},
    KERNEL(1024, APART, define_out),
};

/* Normalise a name for comparison: the demangler spells uint32_t and uint16_t differently from
 * the table. */
static std::string usual(std::string name)
{
    static const char *const pairs[][2] = {{"unsigned int", "uint32_t"},
                                           {"unsigned short", "uint16_t"}};
    for (const auto &pair : pairs)
        if (name.find(pair[0]) != std::string::npos)
            name.replace(name.find(pair[0]), strlen(pair[0]), pair[1]);
    return name;
}

const double_kernel *double_find_kernel(const std::string &name)
{
    for (const double_kernel &k : all)
        if (usual(name) == k.name)
            return &k;
    return nullptr;
}
