/*
 * The decoder of fm-bench serve by plain loops in double, whole sequences at once: what its GPU
 * side is held against.  Numbers that the GPU keeps in bfloat16 are rounded to it.
 */
#ifndef TESTS_SERVE_DEFINE_H
#define TESTS_SERVE_DEFINE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

struct serve_layer {
    std::vector<float> input_norm, post_norm, qkv, o, router, gate_up, down;
    std::vector<int32_t> widths; /* (B, E) */
};

struct serve_model {
    int L, H, I, E, K, Q, G, C, B, V, batch, T;
    bool bf16;
    float eps;
    std::vector<float> table, cos, sin;
    std::vector<int32_t> tokens; /* (batch, T) */
    std::vector<serve_layer> layer;
};

inline float serve_rounded(bool bf16, double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (bf16)
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, 4);
    return f;
}

/* Uniform numbers in +-scale, of the model's type. */
inline std::vector<float> serve_numbers(uint64_t *seed, size_t n, double scale, bool bf16)
{
    std::vector<float> v(n);
    for (float &x : v) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        x = serve_rounded(bf16, scale * ((double)(*seed >> 11) / 4503599627370496.0 - 1));
    }
    return v;
}

inline serve_model serve_make(bool bf16, int batch, int T, int H, int I, int E, int K, int Q, int G,
                              int C)
{
    serve_model m = {2, H, I, E, K, Q, G, C, 2, 50, batch, T, bf16, 1e-5f, {}, {}, {}, {}, {}};
    uint64_t seed = 0x51ed270b8a3c4d1fu;
    double in = 2 / sqrt((double)H);
    m.table = serve_numbers(&seed, (size_t)(m.V * H), 1.7, false);
    for (int i = 0; i < batch * T; i++)
        m.tokens.push_back((int32_t)((i * 29 + i / 7) % m.V));
    for (int t = 0; t < T; t++)
        for (int i = 0; i < C / 2; i++) {
            double angle = t * pow(1e4, -2.0 * i / C);
            m.cos.push_back((float)cos(angle));
            m.sin.push_back((float)sin(angle));
        }
    for (int l = 0; l < m.L; l++) {
        serve_layer w;
        w.input_norm = serve_numbers(&seed, (size_t)H, 1, false);
        w.post_norm = serve_numbers(&seed, (size_t)H, 1, false);
        w.qkv = serve_numbers(&seed, (size_t)((Q + 2 * G) * C * H), in, bf16);
        w.o = serve_numbers(&seed, (size_t)(H * Q * C), 2 / sqrt((double)Q * C), bf16);
        w.router = serve_numbers(&seed, (size_t)(E * H), in, false);
        w.gate_up = serve_numbers(&seed, (size_t)(2 * E * I * H), in, bf16);
        w.down = serve_numbers(&seed, (size_t)(E * I * H), 2 / sqrt((double)I), bf16);
        for (int e = 0; e < 2 * E; e++)
            w.widths.push_back(e < E ? I : 1 + (e * 7 + l) % I);
        m.layer.push_back(w);
    }
    return m;
}

/* w (of a norm) x / rms, of one row. */
inline std::vector<double> serve_norm(const serve_model &m, const double *x, const float *w)
{
    double sum = 0;
    std::vector<double> y((size_t)m.H);
    for (int i = 0; i < m.H; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < m.H; i++)
        y[(size_t)i] = w[i] * x[i] / sqrt(sum / m.H + m.eps);
    return y;
}

/* y = w x, rows of w as long as x. */
inline std::vector<double> serve_multiply(const float *w, size_t rows, const std::vector<double> &x)
{
    std::vector<double> y(rows);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < x.size(); i++)
            y[r] += w[r * x.size() + i] * x[i];
    return y;
}

inline void serve_round(const serve_model &m, std::vector<double> &v)
{
    for (double &x : v)
        x = m.bf16 ? serve_rounded(true, x) : x;
}

/* Adds attention to x (T, H) of one sequence. */
inline void serve_attend_sequence(const serve_model &m, const serve_layer &w, double *x)
{
    size_t C = (size_t)m.C, heads = (size_t)(m.Q + 2 * m.G), turns = C / 2;
    std::vector<std::vector<double>> qkv;
    for (int t = 0; t < m.T; t++) {
        std::vector<double> xn = serve_norm(m, x + t * m.H, w.input_norm.data());
        serve_round(m, xn);
        std::vector<double> row = serve_multiply(w.qkv.data(), heads * C, xn);
        for (size_t h = 0; h < (size_t)(m.Q + m.G); h++)
            for (size_t i = 0; i < turns; i++) {
                double c = m.cos[(size_t)t * turns + i], s = m.sin[(size_t)t * turns + i];
                double a = row[h * C + i], b = row[h * C + turns + i];
                row[h * C + i] = a * c - b * s;
                row[h * C + turns + i] = b * c + a * s;
            }
        for (size_t i = (size_t)m.Q * C; i < row.size(); i++)
            row[i] = m.bf16 ? serve_rounded(true, row[i]) : row[i];
        qkv.push_back(row);
    }
    for (int t = 0; t < m.T; t++) {
        std::vector<double> o((size_t)m.Q * C), p((size_t)t + 1);
        for (size_t h = 0; h < (size_t)m.Q; h++) {
            size_t k = ((size_t)m.Q + h / (size_t)(m.Q / m.G)) * C, v = k + (size_t)m.G * C;
            double sum = 0;
            for (size_t j = 0; j < p.size(); j++) {
                double score = 0;
                for (size_t i = 0; i < C; i++)
                    score += qkv[(size_t)t][h * C + i] * qkv[j][k + i];
                sum += p[j] = exp(score / sqrt((double)C));
            }
            for (size_t j = 0; j < p.size(); j++)
                for (size_t i = 0; i < C; i++)
                    o[h * C + i] += p[j] / sum * qkv[j][v + i];
        }
        serve_round(m, o);
        std::vector<double> y = serve_multiply(w.o.data(), (size_t)m.H, o);
        for (int i = 0; i < m.H; i++)
            x[t * m.H + i] += y[(size_t)i];
    }
}

/* The chosen experts of a row as norm left it, unrounded, and their weights. */
inline void serve_choose(const serve_model &m, const serve_layer &w, const std::vector<double> &xn,
                         std::vector<int> &ids, std::vector<double> &weights)
{
    std::vector<double> logit = serve_multiply(w.router.data(), (size_t)m.E, xn);
    double sum = 0;
    ids.resize((size_t)m.E);
    for (int e = 0; e < m.E; e++)
        ids[(size_t)e] = e;
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int a, int b) { return logit[(size_t)a] > logit[(size_t)b]; });
    ids.resize((size_t)m.K);
    weights.clear();
    for (int e : ids)
        weights.push_back(exp(logit[(size_t)e] - logit[(size_t)ids[0]]));
    for (double v : weights)
        sum += v;
    for (double &v : weights)
        v /= sum;
}

/* What the experts give for one row: sums in double, one rounding at the end. */
inline std::vector<double> serve_experts(const serve_model &m, const serve_layer &w, int budget,
                                         std::vector<double> xn, const std::vector<int> &ids,
                                         const std::vector<double> &weights)
{
    size_t H = (size_t)m.H;
    std::vector<double> y(H);
    serve_round(m, xn);
    for (size_t j = 0; j < ids.size(); j++)
        for (int c = 0; c < w.widths[(size_t)(budget * m.E + ids[j])]; c++) {
            size_t row = (size_t)ids[j] * (size_t)m.I + (size_t)c;
            std::vector<double> gu = serve_multiply(&w.gate_up[2 * row * H], 2, xn);
            double h = gu[0] / (1 + exp(-gu[0])) * gu[1];
            h = m.bf16 ? serve_rounded(true, h) : h;
            for (size_t i = 0; i < H; i++)
                y[i] += weights[j] * h * w.down[row * H + i];
        }
    serve_round(m, y);
    return y;
}

/* Hidden states (batch, T, H) behind all layers. */
inline std::vector<double> serve_define(const serve_model &m, int budget)
{
    size_t H = (size_t)m.H, sequence = (size_t)m.T * H;
    std::vector<double> x((size_t)m.batch * sequence);
    for (size_t i = 0; i < m.tokens.size(); i++)
        for (size_t c = 0; c < H; c++)
            x[i * H + c] = m.table[(size_t)m.tokens[i] * H + c];
    for (const serve_layer &w : m.layer)
        for (int s = 0; s < m.batch; s++) {
            double *at = &x[(size_t)s * sequence];
            serve_attend_sequence(m, w, at);
            for (int t = 0; t < m.T; t++) {
                std::vector<int> ids;
                std::vector<double> weights;
                std::vector<double> xn = serve_norm(m, at + t * m.H, w.post_norm.data());
                serve_choose(m, w, xn, ids, weights);
                std::vector<double> y = serve_experts(m, w, budget, xn, ids, weights);
                for (int i = 0; i < m.H; i++)
                    at[t * m.H + i] += y[(size_t)i];
            }
        }
    return x;
}

#endif
