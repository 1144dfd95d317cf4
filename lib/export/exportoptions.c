/*
 * What may be asked of an export, before anything is opened: a layout says which options it takes.
 */
#include "lib/export/exportoptions.h"

int fm_exportoptions_check(const struct fm_export_options *o, struct fm_err *err)
{
    if (o->by == FM_BY_FIT && o->layout->family)
        return fm_fail(err, FM_EUSAGE,
                       "--fit chooses a member, and layout %s holds all of them; use "
                       "--budget R, the one to start with",
                       o->layout->name);
    if (o->load_cap && !o->layout->capped)
        return fm_fail(err, FM_EUSAGE,
                       "--load-cap is for layout %s; layout %s holds one member, no wider "
                       "than it needs",
                       fm_layouts_capped(), o->layout->name);
    if (o->load_cap && !(o->load_low >= 0 && o->load_low <= o->load_high && o->load_high <= 1))
        return fm_fail(err, FM_EUSAGE, "--load-cap %g:%g: two shares from 0 to 1, the lower first",
                       o->load_low, o->load_high);
    if (o->allow_code && !o->layout->code)
        return fm_fail(err, FM_EUSAGE,
                       "--allow-code: layout %s needs no trust and carries all files of the "
                       "checkpoint; leave it out",
                       o->layout->name);
    if (o->shard_bytes && !o->layout->sharded)
        return fm_fail(err, FM_EUSAGE,
                       "--shard-size: layout %s has a file for every layer, not shards",
                       o->layout->name);
    return FM_OK;
}

bool fm_exportoptions_keep(const struct fm_export_options *o, double budget)
{
    return !o->load_cap || (budget >= o->load_low - FM_EXPORTOPTIONS_SLACK &&
                            budget <= o->load_high + FM_EXPORTOPTIONS_SLACK);
}
