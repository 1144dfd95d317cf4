/*
 * Scores from gradients use the score operations of struct fm_ops.  Those without gradients cost
 * little compared with the expert itself, so plain loops suffice, in double and in order of rows.
 */
#include "lib/learn/criterion.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/stage/stage.h"

static const char *const names[FM_CRITERIA] = {"taylor", "energy", "activation"};

const char *fm_criterion_name(enum fm_criterion criterion)
{
    assert(criterion < FM_CRITERIA);
    return names[criterion];
}

bool fm_criterion_backward(enum fm_criterion criterion)
{
    return criterion == FM_CRITERION_TAYLOR;
}

int fm_criterion_read(enum fm_criterion *criterion, const struct fm_bundle *stream,
                      struct fm_err *err)
{
    const cJSON *options =
        cJSON_GetObjectItemCaseSensitive(fm_stage_history_of(stream, "fm-rank"), "options");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(options, "criterion");
    *criterion = FM_CRITERION_TAYLOR;
    if (!name)
        return FM_OK;
    for (int c = 0; cJSON_IsString(name) && c < FM_CRITERIA; c++)
        if (strcmp(name->valuestring, names[c]) == 0) {
            *criterion = (enum fm_criterion)c;
            return FM_OK;
        }
    return fm_fail(err, FM_EFORMAT,
                   "the history of fm-rank has an unknown criterion, '%.64s'; known: %s, %s, %s",
                   cJSON_IsString(name) ? name->valuestring : "", names[0], names[1], names[2]);
}

/* n elements of an array as floats, in scratch if they have another type. */
static const float *widen(struct fm_in x, size_t n)
{
    if (x.dtype == FM_F32)
        return x.data;
    float *wide = fm_scratch_floats(n);
    fm_dtype_to_f32(wide, x.data, x.dtype, n);
    return wide;
}

/* |down_j|^2 of every channel, in scratch. */
static const float *column_squares(const struct fm_criterion_adder *a,
                                   const struct fm_expert_view *v)
{
    float *squares = fm_scratch((size_t)a->I * sizeof *squares);
    a->ops->dot_rows(squares, v->down, v->down, a->I, a->H, a->H);
    return squares;
}

/* sums[j] += sum over rows of (w h_j)^2, or of |h_j|. */
static void add_rows(const struct fm_criterion_adder *a, double *sums,
                     const struct fm_expert_view *v)
{
    size_t I = (size_t)a->I;
    bool energy = a->criterion == FM_CRITERION_ENERGY;
    const float *h = widen(v->h, (size_t)v->n * I);
    const float *w = v->weight;
    for (int r = 0; r < v->n; r++)
        for (size_t j = 0; j < I; j++) {
            double x =
                energy ? (double)w[r] * (double)h[(size_t)r * I + j] : (double)h[(size_t)r * I + j];
            sums[j] += energy ? x * x : fabs(x);
        }
}

static void add_forward(const struct fm_criterion_adder *a, double *sums,
                        const struct fm_expert_view *v)
{
    struct fm_mark mark = fm_scratch_mark();
    size_t I = (size_t)a->I;
    assert(v->width == a->I);
    add_rows(a, sums, v);
    const float *squares = a->criterion == FM_CRITERION_ENERGY ? column_squares(a, v) : NULL;
    for (size_t j = 0; j < I; j++) {
        double mean = sums[j] / v->n;
        sums[j] = squares ? sums[j] * (double)squares[j] : mean * mean;
    }
    fm_scratch_release(mark);
}

void fm_criterion_add(const struct fm_criterion_adder *a, double *sums,
                      const struct fm_expert_view *v)
{
    if (!fm_criterion_backward(a->criterion)) {
        add_forward(a, sums, v);
        return;
    }
    if (v->parts > 0)
        a->ops->channel_scores_each(sums, v->gate_up, v->down, v->dgu, v->x, v->h, v->dy, v->first,
                                    v->parts, a->I, a->H);
    else
        a->ops->channel_scores(sums, v->gate_up, v->down, v->dgu, v->x, v->h, v->dy, v->n, a->I,
                               a->H);
    assert(v->parts == 0 || !v->gate_up_bias);
    if (v->gate_up_bias)
        a->ops->bias_scores(sums, v->gate_up_bias, v->dgu, v->n, a->I);
}

void fm_criterion_finish(enum fm_criterion criterion, double *scores, size_t X, int I, int batches)
{
    for (size_t i = 0; i < X * (size_t)I; i++)
        scores[i] = criterion == FM_CRITERION_TAYLOR       ? scores[i] / batches
                    : criterion == FM_CRITERION_ACTIVATION ? sqrt(scores[i])
                                                           : scores[i];
}
