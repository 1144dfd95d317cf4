/*
 * Rules that remove whole experts: every expert has a score, and the experts with the lowest scores
 * of each layer are removed.
 *
 *   reap       S_e = mean over the tokens that the router sends to e of g_e(x) |f_e(x)|_2, g the
 *              router's weight as the model uses it, f the expert's output (Lasby et al., ICLR
 *              2026, arXiv 2510.13999)
 *   frequency  the number of tokens that the router sends to e
 *   random     a random number
 *
 * If a router has groups of experts, each group loses the same number, because all groups of a
 * checkpoint have the same size.
 */
#ifndef FM_EXPERTDROP_H
#define FM_EXPERTDROP_H

#include "lib/block/block.h"
#include "lib/run/run.h"

/* Compute score (M, E) of the model run->inputs.model on run->inputs.tokens by a forward pass over
 * all sequences; `outputs`: reap, else frequency.  FM_EFORMAT if a score is not finite. */
int fm_expertdrop_score(double *score, const struct fm_run_options *run, bool outputs,
                        struct fm_err *err);

/* Random scores; `n` selects the draw. */
void fm_expertdrop_draw(double *score, const struct fm_config *config, uint64_t seed, int n);

/* The largest number of experts that each layer may lose; the allowed numbers are multiples of
 * *step. */
int fm_expertdrop_most(const struct fm_config *config, int *step);

/* closed (M, E): FM_PASS_CLOSED for the `count` lowest of each layer, equally many in each group
 * (ties: the last), 0 for the others; count is a multiple of the step. */
void fm_expertdrop_close(float *closed, const double *score, const struct fm_config *config,
                         int count);

#endif
