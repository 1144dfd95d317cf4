/*
 * The definition of a clipped FFN in float64, by plain kernels on the device that holds the
 * weights, and the largest difference that rounding may cause in an implementation.
 */
#include "tests/gpu/gpu_check.h"

definition define(const test_layer &l, const test_call &c, const std::vector<int> &tokens,
                  int32_t budget)
{
    std::vector<int32_t> expert, width, token;
    std::vector<float> weights;
    for (int t : tokens)
        for (int s = 0; s < c.K; s++) {
            int32_t k = c.width(l, t, s, budget);
            expert.push_back(k ? c.ids[(size_t)(t * c.K + s)] - l.e0 : 0);
            width.push_back(k);
            token.push_back(t);
            weights.push_back(c.weights[(size_t)(t * c.K + s)]);
        }
    int slots = (int)expert.size(), cap = *std::max_element(l.cap.begin(), l.cap.end());
    device_array<int32_t> d_expert(expert), d_width(width), d_token(token);
    device_array<float> d_weights(weights);
    device_array<double> h((size_t)slots * (size_t)cap), out(tokens.size() * (size_t)l.H),
        size(out.n);
    define_h<<<8192, 256>>>(h.p, c.hidden.p, l.gate_up.p, l.type, l.H, cap, l.d_row0.p, d_expert.p,
                            d_width.p, d_token.p, slots);
    dim3 grid((unsigned)(l.H + 255) / 256, (unsigned)tokens.size());
    define_out<<<grid, 256>>>(out.p, size.p, h.p, l.down.p, l.type, l.H, cap, l.d_row0.p,
                              d_expert.p, d_width.p, d_weights.p, (int)tokens.size(), c.K);
    MUST(cudaDeviceSynchronize());
    return {tokens, out.read(), size.read()};
}

std::string compare(const test_layer &l, const test_call &c, const definition &d, int path,
                    bool *good)
{
    double u = l.type == FM_CLIP_BF16 ? 1.0 / 256 : 1.0 / 2048;
    if (is_baseline(path))
        u *= 4;
    std::vector<uint8_t> out = c.out.read();
    double worst = 0, off2 = 0, sum2 = 0;
    for (size_t i = 0; i < d.tokens.size(); i++)
        for (int j = 0; j < l.H; j++) {
            size_t at = i * (size_t)l.H + (size_t)j;
            double got = number_at(out.data(), l.type, (int64_t)d.tokens[i] * l.H + j);
            double off = fabs(got - d.out[at]);
            double most = u * (1.1 * d.size[at] + fabs(d.out[at])) + 1e-7 * d.size[at] +
                          (l.type == FM_CLIP_F16 ? 1e-6 : 1e-30);
            worst = off / most <= worst ? worst : off / most; /* keeps NaN */
            off2 += off * off;
            sum2 += d.out[at] * d.out[at];
        }
    double rms = sum2 > 0 ? sqrt(off2 / sum2) : 0;
    *good = worst <= 1 && rms <= u;
    char text[100];
    snprintf(text, sizeof text, "error %.3f of the bound, rms %.2e", worst, rms);
    return text;
}
