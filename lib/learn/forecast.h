/*
 * How long a planned run takes: its floating-point operations over the rate of matrix products,
 * probed here for some tens of milliseconds or assumed for a machine that is not this one, plus a
 * third for all that is not a product.  A forecast for choosing a machine, not a promise: reading
 * from a slow disk is not in it.
 */
#ifndef FM_FORECAST_H
#define FM_FORECAST_H

#include "lib/learn/estimate.h"

/*
 * Fill estimate->forecast.  The probe of bfloat16 products decides whether --precision bf16 is
 * suggested as a change.  Codes of run->machine.ops' device.
 */
int fm_forecast_make(struct fm_estimate *estimate, const struct fm_run_options *run,
                     const struct fm_ops *ops, struct fm_err *err);

/* Seconds on a machine with `cores` cores of the probe's kind. */
double fm_forecast_cores(const struct fm_forecast *forecast, int cores);

/* Seconds of so many ranks on machines like this one, which share a sweep's leaves. */
double fm_forecast_ranks(const struct fm_estimate *estimate, int ranks);

#endif
