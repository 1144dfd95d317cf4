/*
 * The rule of mixture.h; its products fit into 128-bit integers.
 */
#include "lib/data/mixture.h"

#include <assert.h>

int fm_mixture_next(struct fm_mixture *m)
{
    uint64_t i = 0, sum = 0;
    assert(m->inputs > 0 && m->inputs <= FM_INPUTS_MAX);
    for (int s = 0; s < m->inputs; s++) {
        i += m->taken[s];
        sum += m->weight[s];
    }
    int best = 0;
    __int128 most = 0;
    for (int s = 0; s < m->inputs; s++) {
        __int128 behind = (__int128)m->weight[s] * (i + 1) - (__int128)sum * m->taken[s];
        if (s > 0 && behind <= most)
            continue;
        best = s;
        most = behind;
    }
    if (m->taken[best] == m->all[best])
        return -1;
    m->taken[best]++;
    return best;
}
