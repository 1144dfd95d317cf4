/*
 * Learns widths without access to the model: the sweep gives one number dz per expert and action.
 * Random draws are functions of a counter, so no generator state needs to be saved.
 */
#include "lib/masks/logits.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"

#define WIDEST_BONUS 2.0
#define LOAD_DECAY 0.9
#define LOAD_FLOOR 0.01
#define ADAM_EPS 1e-8

int fm_logits_init(struct fm_logits *z, const struct fm_actions *actions, int X, struct fm_err *err)
{
    assert(X > 0 && actions->count > 0);
    size_t n = (size_t)X * (size_t)actions->count;
    *z = (struct fm_logits){.X = X, .A = actions->count, .actions = actions};
    z->I = (double)actions->width[actions->count - 1];
    z->alpha = fm_alloc(6 * n, sizeof *z->alpha, "logits", err);
    if (!z->alpha)
        return FM_ENOMEM;
    z->m = z->alpha + n;
    z->v = z->m + n;
    z->p = z->v + n;
    z->grad = z->p + n;
    z->soft = z->grad + n;
    return FM_OK;
}

void fm_logits_release(struct fm_logits *z)
{
    free(z->alpha);
    *z = (struct fm_logits){0};
}

static size_t count_of(const struct fm_logits *z)
{
    return (size_t)z->X * (size_t)z->A;
}

void fm_logits_start(struct fm_logits *z, const double *lost, double eta)
{
    size_t n = count_of(z);
    double mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += lost[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++) {
        double bonus = (int)(i % (size_t)z->A) == z->A - 1 ? WIDEST_BONUS : 0;
        z->alpha[i] = bonus - (mean > 0 && eta > 0 ? eta * lost[i] / mean : 0);
        z->m[i] = z->v[i] = 0;
    }
    fm_logits_refresh(z);
}

/* y (A) = softmax(y), in place.  The largest element becomes exp(0) before it is divided, so the
 * sum is from 1 to A. */
static void soften(double *y, int A)
{
    double most = y[0], sum = 0;
    for (int a = 1; a < A; a++)
        most = y[a] > most ? y[a] : most;
    for (int a = 0; a < A; a++)
        sum += y[a] = exp(y[a] - most);
    for (int a = 0; a < A; a++)
        y[a] /= sum;
}

static int argmax(const double *y, int A)
{
    int best = 0;
    for (int a = 1; a < A; a++)
        best = y[a] > y[best] ? a : best;
    return best;
}

void fm_logits_refresh(struct fm_logits *z)
{
    memcpy(z->p, z->alpha, count_of(z) * sizeof *z->p);
    for (int x = 0; x < z->X; x++)
        soften(z->p + (size_t)x * (size_t)z->A, z->A);
}

/* sum_a p_a k_a / I of one expert. */
static double mean_width(const struct fm_logits *z, const double *p)
{
    double sum = 0;
    for (int a = 0; a < z->A; a++)
        sum += p[a] * ((double)z->actions->width[a] / z->I);
    return sum;
}

double fm_logits_expected(const struct fm_logits *z)
{
    double sum = 0;
    for (int x = 0; x < z->X; x++)
        sum += mean_width(z, z->p + (size_t)x * (size_t)z->A);
    return 1 - sum / z->X;
}

void fm_logits_harden(const struct fm_logits *z, uint32_t *widths)
{
    for (int x = 0; x < z->X; x++)
        widths[x] = z->actions->width[argmax(z->p + (size_t)x * (size_t)z->A, z->A)];
}

void fm_logits_sample(struct fm_logits *z, uint32_t *widths, double tau, uint64_t seed,
                      uint64_t draw)
{
    assert(tau > 0);
    size_t n = count_of(z);
    for (size_t i = 0; i < n; i++) {
        double g = fm_rng_gumbel(seed, FM_STREAM_GUMBEL, draw * n + i);
        z->soft[i] = (z->alpha[i] + g) / tau;
    }
    for (int x = 0; x < z->X; x++) {
        double *soft = z->soft + (size_t)x * (size_t)z->A;
        soften(soft, z->A);
        widths[x] = z->actions->width[argmax(soft, z->A)];
    }
}

void fm_logits_clear(struct fm_logits *z)
{
    memset(z->grad, 0, count_of(z) * sizeof *z->grad);
}

void fm_logits_back_sample(struct fm_logits *z, const double *dz, double tau, double share)
{
    assert(tau > 0);
    for (int x = 0; x < z->X; x++) {
        size_t at = (size_t)x * (size_t)z->A;
        double mean = 0;
        for (int a = 0; a < z->A; a++)
            mean += z->soft[at + (size_t)a] * dz[at + (size_t)a];
        for (int a = 0; a < z->A; a++)
            z->grad[at + (size_t)a] +=
                share * z->soft[at + (size_t)a] * (dz[at + (size_t)a] - mean) / tau;
    }
}

void fm_logits_back_cost(struct fm_logits *z, const double *q, double lambda)
{
    for (int x = 0; x < z->X; x++) {
        const double *p = z->p + (size_t)x * (size_t)z->A;
        double *grad = z->grad + (size_t)x * (size_t)z->A, mean = mean_width(z, p);
        for (int a = 0; a < z->A; a++)
            grad[a] += lambda * q[x] * p[a] * ((double)z->actions->width[a] / z->I - mean);
    }
}

void fm_logits_back_entropy(struct fm_logits *z, double beta)
{
    for (int x = 0; x < z->X; x++) {
        const double *p = z->p + (size_t)x * (size_t)z->A;
        double *grad = z->grad + (size_t)x * (size_t)z->A, entropy = 0;
        for (int a = 0; a < z->A; a++)
            entropy -= p[a] > 0 ? p[a] * log(p[a]) : 0;
        /* dH/dalpha_a = -p_a (log p_a + H), and p log p is 0 at 0. */
        for (int a = 0; a < z->A; a++)
            grad[a] += p[a] > 0 ? beta / z->X * p[a] * (log(p[a]) + entropy) : 0;
    }
}

void fm_logits_adam(struct fm_logits *z, double lr, double beta1, double beta2, int t)
{
    assert(t > 0);
    double c1 = 1 - pow(beta1, t), c2 = 1 - pow(beta2, t);
    for (size_t i = 0; i < count_of(z); i++) {
        z->m[i] = beta1 * z->m[i] + (1 - beta1) * z->grad[i];
        z->v[i] = beta2 * z->v[i] + (1 - beta2) * z->grad[i] * z->grad[i];
        z->alpha[i] -= lr * (z->m[i] / c1) / (sqrt(z->v[i] / c2) + ADAM_EPS);
    }
    fm_logits_refresh(z);
}

void fm_logits_load(double *q, double *floored, const int64_t *counts, int M, int E, bool first)
{
    for (int m = 0; m < M; m++) {
        const int64_t *c = counts + (size_t)m * (size_t)E;
        double sum = 0;
        for (int e = 0; e < E; e++)
            sum += (double)c[e];
        for (int e = 0; e < E; e++) {
            size_t x = (size_t)m * (size_t)E + (size_t)e;
            double share = sum > 0 ? (double)c[e] / sum : 1.0 / E;
            q[x] = first ? share : LOAD_DECAY * q[x] + (1 - LOAD_DECAY) * share;
            floored[x] = q[x] > LOAD_FLOOR / E ? q[x] : LOAD_FLOOR / E;
        }
    }
}

double fm_logits_pace(double lambda, double gain, int steps, int64_t taken, double rho_start,
                      double until, double rho)
{
    assert(steps > 0);
    /* The target continues to rise after `steps` steps, because the hardened budget lags behind the
     * expected one. */
    double target = rho_start + (until - rho_start) * (double)taken / steps;
    lambda += gain / steps * (target - rho);
    return lambda > 0 ? lambda : 0;
}
