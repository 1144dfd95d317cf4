/*
 * Probes of a few seconds, which run before anything large: whether TMA copies a box, whether one
 * product is correct for each width and each layout of the operands, whether tails are cleared, and
 * whether maps can be made wherever malloc puts a layer.
 */
#include "tests/gpu/gpu_check.h"

#include "kernels/clip/cuda/clip_cuda.h"
#include "tests/gpu/gpu_probe.cuh"

#include <memory>

/* Small whole numbers: their products' sums are exact in every type. */
static std::vector<uint16_t> whole_numbers(int type, size_t n)
{
    std::vector<uint16_t> numbers(n);
    for (uint16_t &v : numbers) {
        float f = (float)(int)(random_bits() % 9) - 4;
        __half h = __float2half_rn(f);
        __nv_bfloat16 b = __float2bfloat16_rn(f);
        memcpy(&v, type == FM_CLIP_F16 ? (void *)&h : (void *)&b, 2);
    }
    return numbers;
}

static const int box_columns = 136, box_rows = 100;

/* Copy the box at (c0, c1) of box_rows x box_columns numbers; the part past the end must be zeros.
 */
static void probe_one_box(int c0, int c1)
{
    std::vector<uint16_t> from = whole_numbers(FM_CLIP_BF16, (size_t)(box_columns * box_rows));
    device_array<uint16_t> memory(from);
    device_array<uint32_t> out((size_t)FM_MAP_BLOCK_BYTES / 4);
    std::string what = "a box at " + std::to_string(c0) + ", " + std::to_string(c1);
    CUtensorMap map;
    if (!fm_clip_cuda_map(&map, FM_CLIP_BF16, memory.p, box_rows, box_columns, 64)) {
        report(false, what, "the driver made no map");
        return;
    }
    MUST(cudaFuncSetAttribute(probe_box, cudaFuncAttributeMaxDynamicSharedMemorySize, PROBE_BYTES));
    probe_box<<<1, PROBE_THREADS, PROBE_BYTES>>>(map, out.p, c0, c1);
    MUST(cudaDeviceSynchronize());
    std::vector<uint32_t> got = out.read();
    int wrong = 0;
    for (int r = 0; r < 64; r++)
        for (int c = 0; c < 64; c++) {
            bool there = c1 + r < box_rows && c0 + c < box_columns;
            uint16_t want = there ? from[(size_t)((c1 + r) * box_columns + c0 + c)] : 0, v;
            memcpy(&v, (uint8_t *)got.data() + fm_map_byte((uint32_t)r, (uint32_t)c), 2);
            wrong += v != want;
        }
    report(wrong == 0, what, wrong ? (std::to_string(wrong) + " numbers are wrong").c_str() : "");
}

/* A (64 rows) and B (N rows), 64 numbers each; `across`: stored transposed. */
struct operand {
    std::vector<uint16_t> numbers;
    device_array<uint16_t> memory;
    CUtensorMap map;
    bool mapped;
    operand(int type, int rows, bool across)
        : numbers(whole_numbers(type, (size_t)rows * 64)), memory(numbers)
    {
        mapped =
            across ? fm_clip_cuda_map(&map, type, memory.p, 64, rows, 64)
                   : fm_clip_cuda_map(&map, type, memory.p, rows, 64, (unsigned)std::min(rows, 64));
    }
    double at(int type, int rows, bool across, int row, int k) const
    {
        return number_at(numbers.data(), type, across ? k * rows + row : row * 64 + k);
    }
};

template <typename T, int N, int A_ACROSS, int B_ACROSS> static void probe_one_product(int type)
{
    operand a(type, 64, A_ACROSS), b(type, N, B_ACROSS);
    device_array<float> out((size_t)(64 * N));
    std::string what = std::string("a product of ") + (type == FM_CLIP_F16 ? "f16" : "bf16") +
                       ", N " + std::to_string(N) + (A_ACROSS ? ", A across" : "") +
                       (B_ACROSS ? ", B across" : "");
    if (!a.mapped || !b.mapped) {
        report(false, what, "the driver made no map");
        return;
    }
    auto kernel = probe_product<T, N, A_ACROSS, B_ACROSS>;
    MUST(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, PROBE_BYTES));
    kernel<<<1, PROBE_THREADS, PROBE_BYTES>>>(a.map, b.map, out.p);
    MUST(cudaDeviceSynchronize());
    std::vector<float> got = out.read();
    int wrong = 0;
    for (int r = 0; r < 64; r++)
        for (int c = 0; c < N; c++) {
            double want = 0;
            for (int k = 0; k < 64; k++)
                want += a.at(type, 64, A_ACROSS, r, k) * b.at(type, N, B_ACROSS, c, k);
            wrong += got[(size_t)(r * N + c)] != want;
        }
    report(wrong == 0, what, wrong ? (std::to_string(wrong) + " numbers are wrong").c_str() : "");
}

template <typename T> static void probe_products(int type)
{
    probe_one_product<T, 16, 0, 0>(type);
    probe_one_product<T, 16, 1, 0>(type);
    probe_one_product<T, 64, 0, 0>(type);
    probe_one_product<T, 64, 1, 0>(type);
    probe_one_product<T, 256, 0, 0>(type);
    probe_one_product<T, 256, 0, 1>(type);
}

/* The maps in the layer's struct are aligned as the driver requires, wherever malloc puts the
 * struct. */
static void probe_heap(int path)
{
    test_layer l(FM_CLIP_BF16, 128, 128, 2, {128, 128}, {128, 128}, 0);
    std::vector<void *> between;
    std::vector<std::unique_ptr<prepared>> held; /* not freed, so that addresses differ */
    bool good = true;
    for (size_t i = 0; i < 32; i++) {
        between.push_back(malloc(16 + 16 * (i % 11)));
        held.emplace_back(new prepared(l, path, "prepare on a shifted heap"));
        good = good && held.back()->code == FM_CLIP_OK;
    }
    for (void *p : between)
        free(p);
    report(good, "prepare on a shifted heap", good ? "" : "see above");
}

/* Widths of one channel and of one less than a step; all other channels are NaN. */
static void probe_tails(const path_name &path)
{
    for (int width : {1, 63}) {
        test_layer l(FM_CLIP_BF16, 64, 128, 2, {128, 128}, {width, width}, 0);
        test_call c(l, 3, 1, 0), crowd(l, 90, 1, 1);
        l.spoil({width, width});
        std::string what = "a width of " + std::to_string(width);
        check(what.c_str(), path, l, c, 0, 1000);
        check((what + ", many rows").c_str(), path, l, crowd, 0, 1000);
    }
}

void check_probes()
{
    int major = 0, minor = 0;
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    MUST(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    bool hopper = major == 9 && minor == 0;
    if (hopper) {
        probe_one_box(0, 0);
        probe_one_box(64, 16);
        probe_one_box(128, 64);
        probe_products<__nv_bfloat16>(FM_CLIP_BF16);
        probe_products<__half>(FM_CLIP_F16);
    }
    probe_heap(hopper ? FM_CLIP_HOPPER : FM_CLIP_MMA);
    for (const path_name &path : paths)
        if (path.path == FM_CLIP_MMA || (path.path == FM_CLIP_HOPPER && hopper))
            probe_tails(path);
}
