/*
 * Code shared by the files of the GPU check: a layer with random weights on the
 * device, calls on it, and the definition in float64 for tokens of a call.
 */
#ifndef TESTS_GPU_CHECK_H
#define TESTS_GPU_CHECK_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/clip/clip.h"
#include "tests/gpu/gpu_kernels.cuh"

/* End the program if a CUDA call fails: later results would be meaningless. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        cudaError_t must_code = (call);                                                            \
        if (must_code != cudaSuccess) {                                                            \
            fprintf(stderr, "gpu_check: %s:%d: %s: %s\n", __FILE__, __LINE__, #call,               \
                    cudaGetErrorString(must_code));                                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

inline uint64_t random_state = 0x9e3779b97f4a7c15u;

inline uint64_t random_bits()
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

inline double random_unit()
{
    return (double)(random_bits() >> 11) / 9007199254740992.0;
}

/* Device memory of n elements, released at the end of the scope. */
template <typename T> class device_array
{
  public:
    T *p = nullptr;
    size_t n = 0;
    device_array() = default;
    explicit device_array(size_t count) : n(count)
    {
        MUST(cudaMalloc((void **)&p, (count + !count) * sizeof(T)));
    }
    explicit device_array(const std::vector<T> &from) : device_array(from.size())
    {
        write(from);
    }
    device_array(const device_array &) = delete;
    device_array &operator=(device_array &&other)
    {
        std::swap(p, other.p);
        std::swap(n, other.n);
        return *this;
    }
    ~device_array()
    {
        cudaFree(p);
    }
    void write(const std::vector<T> &from)
    {
        MUST(cudaMemcpy(p, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> read() const
    {
        std::vector<T> to(n);
        MUST(cudaMemcpy(to.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
};

static inline void fill(void *to, int type, int64_t n, double scale)
{
    fill_numbers<<<4096, 256>>>(to, type, n, random_bits(), (float)scale);
    MUST(cudaGetLastError());
}

/* A layer with `gap` unused channels before and after each expert. */
struct test_layer {
    int type, H, I, E, e0, B;
    std::vector<int64_t> row0;
    std::vector<int32_t> cap, widths;
    int64_t channels;
    device_array<uint8_t> gate_up, down;
    device_array<int64_t> d_row0;
    device_array<int32_t> d_cap, d_widths, d_budget;

    test_layer(int type_, int H_, int I_, int E_, std::vector<int32_t> cap_,
               std::vector<int32_t> widths_, int gap)
        : type(type_), H(H_), I(I_), E(E_), e0(0), B((int)widths_.size() / E_), cap(cap_),
          widths(widths_), channels(gap)
    {
        for (int32_t k : cap) {
            row0.push_back(channels);
            channels += k + gap;
        }
        size_t n = (size_t)channels * (size_t)H * 2;
        gate_up = device_array<uint8_t>(2 * n);
        down = device_array<uint8_t>(n);
        fill(gate_up.p, type, 2 * channels * H, 1 / sqrt((double)H));
        fill(down.p, type, channels * H, 1 / sqrt((double)I));
        d_row0 = device_array<int64_t>(row0);
        d_cap = device_array<int32_t>(cap);
        d_widths = device_array<int32_t>(widths);
        d_budget = device_array<int32_t>(std::vector<int32_t>{0});
    }
    /* Set all channels to NaN except the first used[e] of each expert. */
    void spoil(const std::vector<int32_t> &used)
    {
        size_t row = (size_t)H * 2;
        for (int e = -1; e < E; e++) {
            int64_t from = e < 0 ? 0 : row0[(size_t)e] + used[(size_t)e];
            int64_t to = e + 1 < E ? row0[(size_t)e + 1] : channels;
            if (to <= from)
                continue;
            MUST(cudaMemset(gate_up.p + 2 * (size_t)from * row, 0xff,
                            2 * (size_t)(to - from) * row));
            MUST(cudaMemset(down.p + (size_t)from * row, 0xff, (size_t)(to - from) * row));
        }
    }
    void set_budget(int32_t b)
    {
        d_budget.write({b});
    }
    struct fm_clip_layer given(int path) const
    {
        struct fm_clip_layer l = {};
        l.size = sizeof l;
        l.device = FM_CLIP_CUDA;
        l.type = type;
        l.H = H;
        l.E = E;
        l.e0 = e0;
        l.B = B;
        l.cap_max = *std::max_element(cap.begin(), cap.end());
        l.channels = channels;
        l.gate_up = gate_up.p;
        l.down = down.p;
        l.row0 = d_row0.p;
        l.cap = d_cap.p;
        l.widths = d_widths.p;
        l.budget = d_budget.p;
        l.budget_type = FM_CLIP_I32;
        l.path = path;
        return l;
    }
};

/* Bytes past what a call may write, filled with 0xff and checked afterwards. */
enum { CANARY = 4096 };

struct test_call {
    int N, K;
    std::vector<int32_t> ids, budgets; /* budgets may be empty */
    std::vector<float> weights;
    device_array<uint8_t> hidden, out;
    device_array<int32_t> d_ids, d_budgets;
    device_array<int64_t> d_ids64; /* used if not empty */
    device_array<float> d_weights;

    /* Distinct experts for each token, all equally probable; with probability `popular` its first
     * is forced to e0. */
    test_call(const test_layer &l, int N_, int K_, double popular) : N(N_), K(K_)
    {
        for (int t = 0; t < N; t++) {
            std::vector<int32_t> order;
            for (int e = 0; e < l.E; e++)
                order.push_back(l.e0 + e);
            for (int s = 0; s < K; s++) {
                bool first = s == 0 && random_unit() < popular;
                size_t left = order.size() - (size_t)s, at = first ? 0 : random_bits() % left;
                std::swap(order[(size_t)s], order[(size_t)s + at]);
                ids.push_back(order[(size_t)s]);
                weights.push_back((float)(0.1 + 0.8 * random_unit()));
            }
        }
        hidden = device_array<uint8_t>((size_t)N * (size_t)l.H * 2);
        out = device_array<uint8_t>(hidden.n + CANARY);
        fill(hidden.p, l.type, (int64_t)N * l.H, 1);
        MUST(cudaMemset(out.p, 0xff, out.n));
        upload();
    }
    void upload()
    {
        d_ids = device_array<int32_t>(ids);
        d_weights = device_array<float>(weights);
        d_budgets = device_array<int32_t>(budgets);
    }
    struct fm_clip_call given(const test_layer &l, void *workspace, uint64_t bytes,
                              cudaStream_t stream) const
    {
        struct fm_clip_call c = {};
        c.size = sizeof c;
        c.ids_type = d_ids64.n ? FM_CLIP_I64 : FM_CLIP_I32;
        c.N = N;
        c.K = K;
        c.hidden = hidden.p;
        c.hidden_stride = c.out_stride = l.H;
        c.ids = d_ids64.n ? (const void *)d_ids64.p : d_ids.p;
        c.weights = d_weights.p;
        c.budgets = budgets.empty() ? nullptr : d_budgets.p;
        c.out = out.p;
        c.workspace = workspace;
        c.workspace_bytes = bytes;
        c.stream = stream;
        return c;
    }
    int32_t width(const test_layer &l, int t, int s, int32_t budget) const
    {
        int32_t e = ids[(size_t)(t * K + s)] - l.e0;
        int32_t b = budgets.empty() ? budget : budgets[(size_t)t];
        return e < 0 || e >= l.E ? 0 : l.widths[(size_t)(b * l.E + e)];
    }
};

/* The exact results of the listed tokens (tokens, H), and the sums of their terms' absolute values.
 */
struct definition {
    std::vector<int> tokens;
    std::vector<double> out, size;
};

/* gpu_define.cu. */
definition define(const test_layer &l, const test_call &c, const std::vector<int> &tokens,
                  int32_t budget);

/*
 * The largest error divided by the error that rounding allows: h is rounded once (u times the sum
 * of absolute terms) and so is out (u |out|), u being the unit roundoff, 2^-8 for bf16 and 2^-11
 * for f16; the errors of float32 sums and of the fast exponential are far smaller.  The baselines
 * also round gate and up products and each expert's result: for them u is four times as large.  The
 * relative root mean square is checked as well and may be at most u.
 */
std::string compare(const test_layer &l, const test_call &c, const definition &d, int path,
                    bool *good);

/* The implementations by path; the first is the library's own, the others are baselines. */
struct path_name {
    int path;
    const char *name;
};
extern const path_name paths[3];
inline const path_name &own = paths[0];

inline bool is_baseline(int path)
{
    return path == FM_CLIP_NAIVE || path == FM_CLIP_BUCKET;
}

/* --- gpu_check.cu */

/* Count a check and print its line. */
void report(bool good, const std::string &what, const char *detail);

/* A layer prepared for a path; `code` is the result.  If the path is refused although
 * must_serve says that it supports this layer on this device, that counts as a failed check. */
class prepared
{
  public:
    struct fm_clip *clip = nullptr;
    struct fm_clip_error error = {};
    int32_t code;
    prepared(const test_layer &l, int path, const std::string &what = "prepare");
    ~prepared();
};

/* Five experts of odd widths with gaps of three channels, and three budgets. */
test_layer odd_layer(int type, int H);

/* Enqueue and wait, with a workspace for tokens_of_workspace tokens.  If the call is refused, or
 * writes past the workspace or out, a failed check is counted and the result is false. */
bool forward(prepared &p, const test_layer &l, test_call &c, int tokens_of_workspace);

/* Run one case on one path, and compare `sample` of its tokens with the definition. */
void check(const char *what, const path_name &path, test_layer &l, test_call &c, int32_t budget,
           int sample);

/* --- the parts in other files; each calls report() */
void check_edges();              /* gpu_edges.cu */
void check_replays(int replays); /* gpu_edges.cu */

#endif
