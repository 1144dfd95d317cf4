/*
 * The list of criteria.  To add one, write a file with its descriptor in lib/methods, and add a row
 * to lib/learn/criterion.h.
 */
#include "lib/learn/criterion.h"

#include <assert.h>
#include <string.h>

#include "lib/base/names.h"
#include "lib/base/pool.h"
#include "lib/stage/ranking.h"

#define POINT(name) &fm_criterion_##name,
const struct fm_criterion *const fm_criteria[] = {FM_CRITERION_ROWS(POINT) NULL};

int fm_criterion_read(const struct fm_criterion **criterion, const struct fm_bundle *stream,
                      struct fm_err *err)
{
    const char *name = fm_ranking_criterion(stream);
    int i = 0;
    assert(strcmp(fm_criteria[0]->name, FM_RANKING_CRITERION) == 0);
    while (fm_criteria[i] && strcmp(name, fm_criteria[i]->name) != 0)
        i++;
    *criterion = fm_criteria[i];
    return *criterion
               ? FM_OK
               : fm_fail(err, FM_EFORMAT,
                         "the history of fm-rank has an unknown criterion, '%.64s'; known: %s",
                         name, FM_NAMES_CHOICES(FM_CRITERION_ROWS));
}

const float *fm_criterion_inner(const struct fm_expert_view *v, int I)
{
    size_t n = (size_t)v->n * (size_t)I;
    if (v->h.dtype == FM_F32)
        return v->h.data;
    float *wide = fm_scratch_floats(n);
    fm_dtype_to_f32(wide, v->h.data, v->h.dtype, n);
    return wide;
}
