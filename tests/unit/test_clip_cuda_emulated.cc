/*
 * Run the CUDA kernels of the clipped FFN thread by thread on the host
 * (tests/unit/cuda_emulator.h), and compare routing, gather, both products and the combine with
 * plain loops in float64.  Channels past the widths and between experts are NaN, so using one shows
 * in the result.
 *
 * This tests the arithmetic of indices, layouts and phases as the PTX ISA defines them.  It does
 * not test how a GPU executes the kernels.
 */
#include "tests/unit/cuda_emulator_ptx.h"

#include "kernels/clip/cuda/clip_cuda_mma.cuh"
#include "kernels/clip/cuda/clip_cuda_route.cuh"

struct layer {
    int type, H, E, e0, B;
    std::vector<int64_t> row0;
    std::vector<int32_t> cap, widths; /* (B, E) */
    int32_t budget;
};

struct call {
    int N, K, chunk, ids_type;
    bool per_token, one_block;
    std::vector<int64_t> ids;
    std::vector<int32_t> budgets;
    int nan_token; /* or -1 */
    int gap;       /* numbers between two rows of hidden and of out */
};

static double uniform()
{
    return (double)(emu_random() >> 11) / 9007199254740992.0 * 2 - 1;
}

static std::vector<uint8_t> numbers(int type, size_t n, double scale)
{
    std::vector<uint8_t> bytes(2 * n);
    for (size_t i = 0; i < n; i++) {
        float v = (float)(uniform() * scale);
        if (type == FM_CLIP_F16)
            *(__half *)&bytes[2 * i] = __float2half_rn(v);
        else
            *(__nv_bfloat16 *)&bytes[2 * i] = __float2bfloat16_rn(v);
    }
    return bytes;
}

static double number(int type, const void *base, size_t i)
{
    if (type == FM_CLIP_F16)
        return __half2float(((const __half *)base)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)base)[i]);
}

static double rounded(int type, double v)
{
    if (type == FM_CLIP_F16)
        return __half2float(__float2half_rn((float)v));
    return __bfloat162float(__float2bfloat16_rn((float)v));
}

static void set_nan(std::vector<uint8_t> &bytes, size_t first, size_t n)
{
    memset(&bytes[first * 2], 0xff, n * 2);
}

static int32_t clamped(int64_t v, int64_t high)
{
    return (int32_t)(v < 0 ? 0 : v > high ? high : v);
}

static int32_t width_of(const layer &l, const call &c, int t, int64_t e)
{
    int32_t b = clamped(c.per_token ? c.budgets[(size_t)t] : l.budget, l.B - 1);
    return clamped(l.widths[(size_t)b * (size_t)l.E + (size_t)e], l.cap[(size_t)e]);
}

struct data {
    std::vector<uint8_t> gate_up, down, hidden, out;
    std::vector<float> weights;
    std::vector<int32_t> ids32;
    int64_t channels;
};

/* Set channels past the widest width in use to NaN. */
static void spoil(const layer &l, const call &c, data &d)
{
    std::vector<int32_t> used((size_t)l.E);
    for (int t = 0; t < c.N; t++)
        for (int e = 0; e < l.E; e++)
            used[(size_t)e] = std::max(used[(size_t)e], width_of(l, c, t, e));
    size_t H = (size_t)l.H;
    std::vector<bool> keep((size_t)d.channels);
    for (size_t e = 0; e < used.size(); e++)
        for (int j = 0; j < used[e]; j++)
            keep[(size_t)l.row0[e] + (size_t)j] = true;
    for (size_t j = 0; j < keep.size(); j++)
        if (!keep[j]) {
            set_nan(d.gate_up, 2 * j * H, 2 * H);
            set_nan(d.down, j * H, H);
        }
}

static data make_data(const layer &l, const call &c)
{
    data d;
    d.channels = 0;
    for (int e = 0; e < l.E; e++)
        d.channels = std::max(d.channels, l.row0[(size_t)e] + l.cap[(size_t)e]);
    d.channels += 3;
    size_t H = (size_t)l.H, n = (size_t)d.channels * H;
    d.gate_up = numbers(l.type, 2 * n, 2.0 / sqrt((double)H));
    d.down = numbers(l.type, n, 0.3);
    size_t stride = H + (size_t)c.gap;
    d.hidden = numbers(l.type, (size_t)c.N * stride, 1);
    d.out = numbers(l.type, (size_t)c.N * stride, 1);
    spoil(l, c, d);
    for (int i = 0; i < c.N * c.K; i++) {
        d.weights.push_back((float)(0.2 + 0.5 * fabs(uniform())));
        d.ids32.push_back((int32_t)c.ids[(size_t)i]);
    }
    if (c.nan_token >= 0)
        set_nan(d.hidden, (size_t)c.nan_token * stride, H);
    return d;
}

/* Compute out in float64, with h rounded as it is stored. */
static std::vector<double> reference(const layer &l, const call &c, const data &d)
{
    size_t H = (size_t)l.H, stride = H + (size_t)c.gap;
    std::vector<double> out((size_t)c.N * H);
    for (int t = 0; t < c.N; t++)
        for (int s = 0; s < c.K; s++) {
            int64_t e = c.ids[(size_t)(t * c.K + s)] - l.e0;
            if (e < 0 || e >= l.E)
                continue;
            for (int j = 0; j < width_of(l, c, t, e); j++) {
                size_t row = (size_t)l.row0[(size_t)e] + (size_t)j;
                double g = 0, u = 0;
                for (size_t i = 0; i < H; i++) {
                    double x = number(l.type, d.hidden.data(), (size_t)t * stride + i);
                    g += x * number(l.type, d.gate_up.data(), 2 * row * H + i);
                    u += x * number(l.type, d.gate_up.data(), (2 * row + 1) * H + i);
                }
                double h =
                    rounded(l.type, g / (1 + exp(-g)) * u) * d.weights[(size_t)(t * c.K + s)];
                for (size_t i = 0; i < H; i++)
                    out[(size_t)t * H + i] += h * number(l.type, d.down.data(), row * H + i);
            }
        }
    return out;
}

static const emu_dim one_block = {1, 1, 1};

static void run_route(fm_cuda_job job, bool one)
{
    if (one) {
        emu_launch(one_block, ROUTE_BLOCK, 0, [&]() { route_one(job); });
        return;
    }
    memset(job.counts, 0, (size_t)job.E * sizeof(int32_t));
    emu_dim parts = {(unsigned)(job.parts + 7) / 8, 1, 1};
    emu_launch(parts, 256, 0, [&]() { route_count_parts(job); });
    emu_launch(one_block, ROUTE_BLOCK, 0, [&]() { route_part_offsets(job); });
    emu_launch(parts, 256, 0, [&]() { route_seat_parts(job); });
    emu_launch({(unsigned)(job.E + 7) / 8, 1, 1}, 256, 0, [&]() { route_close(job); });
    emu_launch(one_block, ROUTE_BLOCK, 0, [&]() { route_plan(job); });
}

template <typename T> static void run_products(const fm_cuda_job &job)
{
    emu_dim ctas = {(unsigned)job.ctas, 1, 1};
    emu_launch(ctas, MMA_THREADS, MMA_BYTES, [&]() { mma_product<T, 1>(job); });
    emu_launch(ctas, MMA_THREADS, MMA_BYTES, [&]() { mma_product<T, 2>(job); });
    emu_dim grid = {(unsigned)job.n, (unsigned)(job.H + 1023) / 1024, 1};
    if (job.out_stride % 4 == 0) {
        emu_launch(grid, 256, 0, [&]() { combine_rows<T, 4>(job); });
    } else {
        grid.y = (unsigned)(job.H + 255) / 256;
        emu_launch(grid, 256, 0, [&]() { combine_rows<T, 1>(job); });
    }
}

/* What fm_clip_forward does on a CUDA device, kernel by kernel. */
static int32_t run_call(const layer &l, const call &c, data &d)
{
    int cap_max = *std::max_element(l.cap.begin(), l.cap.end()), stride = l.H + c.gap;
    int32_t faults = 0;
    fm_cuda_job job = {};
    job.gate_up = d.gate_up.data();
    job.down = d.down.data();
    job.row0 = l.row0.data();
    job.cap = l.cap.data();
    job.widths = l.widths.data();
    job.budget = &l.budget;
    job.budget_type = FM_CLIP_I32;
    job.faults = &faults;
    job.E = l.E;
    job.e0 = l.e0;
    job.B = l.B;
    job.H = l.H;
    job.type = l.type;
    job.channels_padded = fm_cuda_padded(cap_max);
    job.ctas = 2;
    job.hidden_stride = job.out_stride = stride;
    job.ids_type = c.ids_type;
    job.K = c.K;
    uint64_t bytes = fm_cuda_job_carve(&job, nullptr, (int64_t)c.chunk * c.K, cap_max);
    std::vector<uint8_t> workspace(bytes, 0xff);
    fm_cuda_job_carve(&job, workspace.data(), (int64_t)c.chunk * c.K, cap_max);
    bool whole = c.chunk >= c.N;
    for (int first = 0; first < c.N; first += c.chunk) {
        job.ids = c.ids_type == FM_CLIP_I64 ? (const void *)(c.ids.data() + first * c.K)
                                            : (const void *)(d.ids32.data() + first * c.K);
        job.weights = d.weights.data() + first * c.K;
        job.budgets = c.per_token ? c.budgets.data() + first : nullptr;
        job.hidden = d.hidden.data() + (size_t)(2 * first * stride);
        job.out = d.out.data() + (size_t)(2 * first * stride);
        if (whole) {
            job.counts_call = job.counts;
        } else if (first == 0) {
            memset(job.counts_call, 0, (size_t)l.E * sizeof(int32_t));
            emu_launch({3, 1, 1}, 256, 0, [&]() { route_count(job, (int64_t)c.N * c.K); });
        }
        job.n = std::min(c.chunk, c.N - first);
        job.slots = job.n * c.K;
        job.parts = fm_cuda_parts(job.slots, job.E);
        run_route(job, whole && c.one_block);
        emu_dim grid = {(unsigned)job.slots, 1, 1};
        if (stride % 8 == 0)
            emu_launch(grid, 256, 0, [&]() { gather_rows<uint4>(job, l.H / 8, stride / 8); });
        else
            emu_launch(grid, 256, 0, [&]() { gather_rows<uint16_t>(job, l.H, stride); });
        if (l.type == FM_CLIP_F16)
            run_products<__half>(job);
        else
            run_products<__nv_bfloat16>(job);
    }
    return faults;
}

static int failures, runs;

static const char *counted(bool ok)
{
    runs++;
    failures += !ok;
    return ok ? "ok  " : "FAIL";
}

/* Check that each number differs from the reference by at most the unit roundoff of its type times
 * the largest number of its token; the NaN token's must be NaN. */
static void compare(const char *what, const layer &l, const call &c, const data &d,
                    const std::vector<double> &want)
{
    double unit = l.type == FM_CLIP_BF16 ? 1.0 / 256 : 1.0 / 2048;
    double worst = 0;
    size_t H = (size_t)l.H, stride = H + (size_t)c.gap;
    for (int t = 0; t < c.N; t++) {
        double most = 0;
        for (size_t i = 0; i < H; i++)
            most = std::max(most, fabs(want[(size_t)t * H + i]));
        bool touched = false;
        for (int s = 0; s < c.K; s++) {
            int64_t e = c.ids[(size_t)(t * c.K + s)] - l.e0;
            touched |= e >= 0 && e < l.E && width_of(l, c, t, e) > 0;
        }
        for (size_t i = 0; i < H; i++) {
            double got = number(l.type, d.out.data(), (size_t)t * stride + i);
            double off = fabs(got - want[(size_t)t * H + i]) / (unit * (most + 1e-3));
            if (t == c.nan_token && touched)
                off = got != got ? 0 : 1e9;
            if (!(off <= 1)) {
                if (worst <= 1)
                    fprintf(stderr, "%s: token %d column %zu: %g, not %g\n", what, t, i, got,
                            want[(size_t)t * H + i]);
                worst = off == off ? std::max(worst, off) : 1e9;
            } else {
                worst = std::max(worst, off);
            }
        }
    }
    printf("%s %s: worst %.3f of the tolerance\n", counted(worst <= 1), what, worst);
}

static void check(const char *what, const layer &l, const call &c, int32_t faults = 0)
{
    emu.chance = 0x9e3779b97f4a7c15u;
    data d = make_data(l, c);
    std::vector<double> want = reference(l, c, d);
    int32_t met = run_call(l, c, d);
    compare(what, l, c, d, want);
    if (met != faults) {
        fprintf(stderr, "%s: faults %d, not %d\n", what, met, faults);
        failures++;
    }
    if (c.nan_token >= 0 || !c.per_token)
        return;
    std::vector<uint8_t> first = d.out; /* the same call, other thread orders: the same bits */
    emu.chance = 0xd1b54a32d192ed03u;
    run_call(l, c, d);
    if (first != d.out) {
        fprintf(stderr, "%s: different bits in the second run\n", what);
        failures++;
    }
}

/* Experts of the given widths and caps, with channels of NaN before each. */
static layer make_layer(int type, int H, int B, std::vector<int32_t> cap,
                        std::vector<int32_t> widths)
{
    layer l = {type, H, (int)cap.size(), 0, B, {}, cap, widths, 0};
    int64_t at = 5;
    for (int32_t k : cap) {
        l.row0.push_back(at);
        at += k + 2;
    }
    return l;
}

/* Tokens with K choices; the share `popular` of slots goes to the first expert. */
static call make_call(const layer &l, int N, int K, double popular)
{
    call c = {N, K, N, FM_CLIP_I32, false, true, {}, {}, -1, 0};
    emu.chance = 0xa0761d6478bd642fu;
    for (int i = 0; i < N * K; i++)
        c.ids.push_back(l.e0 +
                        (fabs(uniform()) < popular ? 0 : (int)(emu_random() % (unsigned)l.E)));
    return c;
}

static void all_forms()
{
    layer l = make_layer(FM_CLIP_BF16, 72, 2, {70, 33, 1, 64, 130},
                         {70, 0, 1, 63, 130, 17, 33, 1, 64, 65});
    l.budget = 1;
    check("few rows, odd widths", l, make_call(l, 9, 2, 0));
    l.budget = 0;
    check("one expert with 65 to 128 rows, others with few", l, make_call(l, 50, 2, 0.6));

    call c = make_call(l, 21, 3, 0.2);
    c.ids_type = FM_CLIP_I64;
    c.one_block = false;
    c.ids[4] = -1;
    c.ids[7] = 99;
    c.ids[8] = c.ids[9] = c.ids[10] = l.E - 1; /* two of token 3: duplicates add */
    c.ids[15] = c.ids[16] = c.ids[17] = -1;    /* a padded row */
    c.nan_token = 6;
    check("absent ids, duplicates, a padded row, a NaN row, several kernels", l, c);

    l.e0 = 10;
    c = make_call(l, 12, 2, 0);
    for (size_t i = 0; i < c.ids.size(); i += 3)
        c.ids[i] -= 7;
    check("a range of experts from 10 on", l, c);
    l.e0 = 0;

    c = make_call(l, 40, 2, 0.5);
    c.per_token = true;
    for (int t = 0; t < c.N; t++)
        c.budgets.push_back(t * 7 % 3 == 0);
    check("budgets per token", l, c);

    c = make_call(l, 45, 2, 0.8);
    c.chunk = 19;
    check("chunks of 19 of 45 tokens", l, c);

    l.widths[5] = 71;
    l.budget = 5;
    check("a width and a budget out of range", l, make_call(l, 4, 2, 0.9),
          FM_CLIP_FAULT_WIDTH | FM_CLIP_FAULT_BUDGET);
}

/* Sums that are computed in several splits. */
static void long_sums()
{
    layer l = make_layer(FM_CLIP_BF16, 64, 1, {2200, 4100}, {2111, 70});
    call c = make_call(l, 6, 1, 0);
    for (int t = 0; t < c.N; t++)
        c.ids[(size_t)t] = t == 4;
    check("a sum in two splits", l, c);
}

/* The other type, and rows that no vector of four or eight numbers fits. */
static void half_and_gaps()
{
    layer l = make_layer(FM_CLIP_F16, 72, 1, {70, 33, 130}, {17, 33, 65});
    call c = make_call(l, 9, 2, 0);
    c.gap = 1;
    check("f16, odd strides", l, c);
}

/* --- routing, slot by slot */

/* Whether rows and groups are those of plain loops: experts in order, each with its widths from
 * wide to narrow, and the slots of a group in slot order. */
static bool as_by_loops(const fm_cuda_job &j, const layer &l, const call &c)
{
    int row = 0, groups = 0;
    bool same = true;
    for (int e = 0; e < l.E; e++) {
        std::map<int, std::vector<int>, std::greater<int>> slots; /* by width */
        for (int s = 0; s < j.slots; s++)
            if (c.ids[(size_t)s] == e && width_of(l, c, s / c.K, e) > 0)
                slots[width_of(l, c, s / c.K, e)].push_back(s);
        int record = row;
        for (const auto &group : slots) {
            const fm_cuda_group &g = j.records[record];
            same = same && g.expert == e && g.width == group.first && g.row == row &&
                   g.rows == (int)group.second.size();
            for (int s : group.second) {
                same = same && j.slot_expert[s] == e && j.row_slot[row] == s &&
                       j.slot_row[s] == row && j.slot_record[s] == record;
                row++;
            }
            record++;
        }
        groups += (int)slots.size();
    }
    return same && j.totals->rows == row && j.totals->groups == groups;
}

static void check_routing(const char *what, int E, int N, bool per_token)
{
    std::vector<int32_t> cap((size_t)E, 64), widths, ids;
    for (int i = 0; i < 3 * E; i++)
        widths.push_back(i * 7 % 65);
    layer l = make_layer(FM_CLIP_BF16, 8, 3, cap, widths);
    call c = make_call(l, N, 3, 0.3);
    c.per_token = per_token;
    for (int t = 0; t < N; t++)
        c.budgets.push_back(t * 5 % 3);
    for (size_t i = 0; i < c.ids.size(); i++) {
        c.ids[i] = i % 11 ? c.ids[i] : -1;
        ids.push_back((int32_t)c.ids[i]);
    }
    for (bool one : {true, false}) {
        int32_t faults = 0;
        fm_cuda_job job = {};
        job.cap = l.cap.data();
        job.widths = l.widths.data();
        job.budget = &l.budget;
        job.budget_type = job.ids_type = FM_CLIP_I32;
        job.faults = &faults;
        job.E = E;
        job.B = 3;
        job.H = 8;
        job.channels_padded = 64;
        job.ids = ids.data();
        job.budgets = per_token ? c.budgets.data() : nullptr;
        job.n = N;
        job.K = c.K;
        job.slots = N * c.K;
        job.parts = fm_cuda_parts(job.slots, E);
        std::vector<uint8_t> memory(fm_cuda_job_carve(&job, nullptr, job.slots, 64), 0xff);
        fm_cuda_job_carve(&job, memory.data(), job.slots, 64);
        job.counts_call = job.counts;
        run_route(job, one);
        printf("%s routing of %s in %d parts, by %s\n", counted(as_by_loops(job, l, c)), what,
               job.parts, one ? "one block" : "several");
    }
}

/* A warp routes at most FM_CUDA_PART_SLOTS slots, even if the number of slots is not a multiple of
 * that.  Together, the parts cover all slots, in order.  Longer parts would give the same rows,
 * more slowly. */
static void parts_are_short()
{
    bool ok = true;
    for (int32_t slots : {1, 31, 256, 257, 300, 511, 513, 2100}) {
        fm_cuda_job job = {};
        job.slots = slots;
        job.parts = fm_cuda_parts(slots, 8);
        int32_t at = 0;
        for (int32_t part = 0, first, end; part < job.parts; part++, at = end) {
            fm_cuda_part(&job, part, &first, &end);
            ok = ok && first == at && first <= end && end - first <= FM_CUDA_PART_SLOTS;
        }
        ok = ok && at == slots;
    }
    printf("%s parts of the routing have at most %d slots, and cover all\n", counted(ok),
           FM_CUDA_PART_SLOTS);
}

/* The index of the row of widths may have any type; outside [0, 5) it is clamped, with a fault. */
static void budgets_of_every_type()
{
    static const struct {
        double given;
        int32_t index, faults;
    } cases[] = {{3, 3, 0},
                 {-3, 0, FM_CLIP_FAULT_BUDGET},
                 {99, 4, FM_CLIP_FAULT_BUDGET},
                 {NAN, 0, FM_CLIP_FAULT_BUDGET}};
    bool ok = true;
    for (int type : {FM_CLIP_I32, FM_CLIP_I64, FM_CLIP_F32, FM_CLIP_F16, FM_CLIP_BF16})
        for (const auto &one : cases) {
            bool whole = type == FM_CLIP_I32 || type == FM_CLIP_I64;
            if (whole && one.given != one.given)
                continue;
            int32_t i32 = whole ? (int32_t)one.given : 0, faults = 0, index = -1;
            int64_t i64 = i32;
            float f32 = (float)one.given;
            __half f16 = __float2half_rn(f32);
            __nv_bfloat16 bf16 = __float2bfloat16_rn(f32);
            const void *budgets[] = {&f32, &f16, &bf16, &i32, &i64};
            fm_cuda_job job = {};
            job.B = 5;
            job.faults = &faults;
            job.budget_type = type;
            job.budget = budgets[type];
            emu_launch(one_block, 1, 0, [&]() { index = fm_cuda_budget(&job); });
            ok = ok && index == one.index && faults == one.faults;
        }
    printf("%s budgets of every type\n", counted(ok));
}

int main(void)
{
    parts_are_short();
    budgets_of_every_type();
    check_routing("many slots", 5, 700, false);
    check_routing("budgets per token", 9, 300, true);
    check_routing("more experts than slots", 400, 90, false);
    all_forms();
    half_and_gaps();
    long_sums();
    printf("%d runs, %d failures\n", runs, failures);
    return failures != 0;
}
