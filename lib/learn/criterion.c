/*
 * Criteria with gradients use the score operations of struct fm_ops: Fisher's criterion is the
 * suite's own score with all parameters set to 1.  Those without gradients cost little compared
 * with the expert itself, so plain loops suffice, in double and in order of rows.
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

static const char *const names[FM_CRITERIA] = {"taylor",       "energy", "activation",
                                               "contribution", "fisher", "winnow"};

const char *fm_criterion_name(enum fm_criterion criterion)
{
    assert(criterion < FM_CRITERIA);
    return names[criterion];
}

bool fm_criterion_backward(enum fm_criterion criterion)
{
    return criterion == FM_CRITERION_TAYLOR || criterion == FM_CRITERION_FISHER;
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
    for (int c = 0; cJSON_IsString(name) && c <= FM_CRITERION_ACTIVATION; c++)
        if (strcmp(name->valuestring, names[c]) == 0) {
            *criterion = (enum fm_criterion)c;
            return FM_OK;
        }
    return fm_fail(err, FM_EFORMAT,
                   "the history of fm-rank has an unknown criterion, '%.64s'; known: %s, %s, %s",
                   cJSON_IsString(name) ? name->valuestring : "", names[0], names[1], names[2]);
}

int fm_criterion_begin(struct fm_criterion_adder *a, enum fm_criterion criterion,
                       const struct fm_ops *ops, int rows, int I, int H, struct fm_err *err)
{
    *a = (struct fm_criterion_adder){.criterion = criterion, .ops = ops, .I = I, .H = H};
    if (criterion != FM_CRITERION_FISHER)
        return FM_OK;
    size_t count = (size_t)rows * (size_t)I * (size_t)H;
    a->ones = fm_alloc_large(count * sizeof *a->ones, "parameters of 1", err);
    for (size_t i = 0; a->ones && i < count; i++)
        a->ones[i] = 1;
    return a->ones ? FM_OK : err->code;
}

void fm_criterion_end(struct fm_criterion_adder *a)
{
    free(a->ones);
    a->ones = NULL;
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

/* sums[j] += sum over rows of (w h_j)^2, of w |h_j|, or of |h_j|. */
static void add_rows(const struct fm_criterion_adder *a, double *sums,
                     const struct fm_expert_view *v)
{
    size_t I = (size_t)a->I;
    bool energy = a->criterion == FM_CRITERION_ENERGY;
    bool weighed = energy || a->criterion == FM_CRITERION_WINNOW;
    const float *h = widen(v->h, (size_t)v->n * I);
    const float *w = v->weight;
    for (int r = 0; r < v->n; r++)
        for (size_t j = 0; j < I; j++) {
            double x = weighed ? (double)w[r] * (double)h[(size_t)r * I + j]
                               : (double)h[(size_t)r * I + j];
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
    const float *squares = a->criterion == FM_CRITERION_ACTIVATION ? NULL : column_squares(a, v);
    for (size_t j = 0; j < I; j++) {
        double mean = sums[j] / v->n;
        sums[j] = a->criterion == FM_CRITERION_ENERGY         ? sums[j] * (double)squares[j]
                  : a->criterion == FM_CRITERION_WINNOW       ? sums[j] * sqrt((double)squares[j])
                  : a->criterion == FM_CRITERION_CONTRIBUTION ? mean * sqrt((double)squares[j])
                                                              : mean * mean;
    }
    fm_scratch_release(mark);
}

void fm_criterion_add(const struct fm_criterion_adder *a, double *sums,
                      const struct fm_expert_view *v)
{
    struct fm_in ones = fm_f32(a->ones);
    if (!fm_criterion_backward(a->criterion)) {
        add_forward(a, sums, v);
        return;
    }
    if (v->parts > 0)
        a->ops->channel_scores_each(sums, a->ones ? ones : v->gate_up, a->ones ? ones : v->down,
                                    v->dgu, v->x, v->h, v->dy, v->first, v->parts, a->I, a->H);
    else
        a->ops->channel_scores(sums, a->ones ? ones : v->gate_up, a->ones ? ones : v->down, v->dgu,
                               v->x, v->h, v->dy, v->n, a->I, a->H);
    assert(v->parts == 0 || !v->gate_up_bias);
    if (v->gate_up_bias)
        a->ops->bias_scores(sums, a->ones ? a->ones : v->gate_up_bias, v->dgu, v->n, a->I);
}

void fm_criterion_finish(enum fm_criterion criterion, double *scores, const int64_t *tokens,
                         size_t X, int I, int batches)
{
    for (size_t i = 0; i < X * (size_t)I; i++) {
        double rows = (double)tokens[i / (size_t)I];
        scores[i] = fm_criterion_backward(criterion)               ? scores[i] / batches
                    : criterion == FM_CRITERION_ACTIVATION         ? sqrt(scores[i])
                    : criterion == FM_CRITERION_WINNOW && rows > 0 ? scores[i] / rows
                                                                   : scores[i];
    }
}
