/*
 * The time of a planned run, as the sum of three terms: its floating-point operations divided by
 * the rate of matrix products; a third of that for other operations on tokens, or as much again
 * with bfloat16 operands, because they are in float32 in either precision; and the time to convert
 * the weights that are read.  The rate and the conversion are measured here, in a fraction of a
 * second.  The forecast is meant for choosing a machine and is not a guarantee: waiting for a disk
 * is never included.
 */
#ifndef FM_FORECAST_H
#define FM_FORECAST_H

#include "lib/learn/estimate.h"

/*
 * Fill estimate->forecast.  The probe of bfloat16 products decides whether --precision bf16 is
 * suggested as a change.  The only error is FM_ENOMEM.
 */
int fm_forecast_make(struct fm_estimate *estimate, const struct fm_machine *machine,
                     const struct fm_ops *ops, struct fm_err *err);

/* Seconds on a machine with `cores` cores like those of the probe. */
double fm_forecast_cores(const struct fm_forecast *forecast, int cores);

/* Seconds for `ranks` ranks, on machines like this one, that share a sweep's leaves. */
double fm_forecast_ranks(const struct fm_estimate *estimate, int ranks);

#endif
