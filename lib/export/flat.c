/*
 * Flat tensors: all experts of a layer one after another, each with its own width, in the order of
 * a bundle (lib/model/packed.h), so that most of them are copies of ranges:
 *
 *     gate_up     | e0: gate, up of channel 0 | gate, up of channel 1 | ... | e1: ...
 *     down        | e0: channel 0 | channel 1 | ... | e1: ...
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "lib/export/plan.h"
#include "lib/model/checkpoint.h"

int fm_exportplan_add_flat(struct fm_exportplan *p, struct fm_planned_tensor *t,
                           enum fm_weight_part named, const char *suffix, enum fm_weight_part part,
                           int plane, struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    char name[FM_WEIGHT_NAME_BYTES], whole[FM_WEIGHT_NAME_BYTES + 8];
    fm_checkpoint_name(name, c, p->options.layout->names, named, c->moe[t->m], 0);
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    t->t.name = whole;
    return fm_exportplan_add_experts(p, t, 0, c->E, part, plane, err);
}

/* Add the scales and the factors of a part that belong to no channel: n numbers of each expert. */
static int add_apart(struct fm_exportplan *p, int m, enum fm_weight_part of, struct fm_err *err)
{
    const struct fm_packed *packed = fm_packed_at(&p->packed, m);
    const struct fm_config *c = &p->from->config;
    enum fm_weight_part cut = of == FM_PART_DOWN_T ? FM_PART_DOWN : FM_PART_GATE;
    struct fm_planned_tensor t = {.m = m};
    t.t = (struct fm_tensor){
        .dtype = packed->scales, .dims = 2, .shape = {(uint64_t)c->E, (uint64_t)c->H}};
    if (!fm_packed_find(packed, of, 1) &&
        fm_exportplan_add_flat(p, &t, of, FM_PACKED_SCALE, cut, 1, err))
        return err->code;
    t.t.dtype = FM_F32;
    t.t.shape[1] = (uint64_t)fm_expert_part_rows(c->expert, of);
    return packed->scheme.storage->factor_end
               ? fm_exportplan_add_flat(p, &t, of, FM_PACKED_FACTOR, cut, FM_PLANES, err)
               : FM_OK;
}

int fm_exportplan_flat(struct fm_exportplan *p, int m, struct fm_err *err)
{
    const struct fm_packed *packed = fm_packed_at(&p->packed, m);
    assert(fm_exportplan_layer_channels(p, m) % (uint64_t)packed->group == 0);
    for (int i = 0; i < packed->parts; i++) {
        const struct fm_packed_part part =
            fm_packed_flat(packed, &packed->part[i], fm_exportplan_layer_channels(p, m));
        struct fm_planned_tensor t = {.m = m};
        t.t = (struct fm_tensor){.dtype = part.dtype, .dims = part.dims};
        memcpy(t.t.shape, part.shape, sizeof part.shape);
        if (fm_exportplan_add_flat(p, &t, part.of, part.plane == 1 ? FM_PACKED_SCALE : "", part.of,
                                   part.plane, err))
            return err->code;
    }
    if (p->coded == FM_CODED_EXPERTS &&
        (add_apart(p, m, FM_PART_GATE_UP, err) || add_apart(p, m, FM_PART_DOWN_T, err)))
        return err->code;
    return FM_OK;
}
