/*
 * The list of ways in which experts are stored in tensors, and the sizes that follow from it.  A
 * channel always has the same numbers: `rows` rows of gate_up, one row of down, and a bias for each
 * row of gate_up if the form has biases.
 */
#include "lib/block/experts.h"

#include <assert.h>

int fm_expert_cuts(struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX], const struct fm_expert_form *form,
                   enum fm_weight_part part)
{
    int r = form->rows;
    switch (part) {
    case FM_PART_GATE:
        cut[0] = (struct fm_expert_cut){part, FM_PART_GATE_UP, 0, 1, false};
        return 1;
    case FM_PART_UP:
        cut[0] = (struct fm_expert_cut){part, FM_PART_GATE_UP, 1, 1, false};
        return 1;
    case FM_PART_GATE_THEN_UP:
        cut[0] = fm_expert_cut(form, FM_PART_GATE);
        cut[1] = fm_expert_cut(form, FM_PART_UP);
        return 2;
    case FM_PART_GATE_UP_T:
        cut[0] = (struct fm_expert_cut){part, FM_PART_GATE_UP, 0, r, true};
        return 1;
    case FM_PART_DOWN:
        cut[0] = (struct fm_expert_cut){part, FM_PART_DOWN_T, 0, 1, true};
        return 1;
    default:
        assert(part == FM_PART_GATE_UP || part == FM_PART_DOWN_T || part == FM_PART_BIAS);
        cut[0] = (struct fm_expert_cut){part, part, 0, fm_expert_part_rows(form, part), false};
        return 1;
    }
}

struct fm_expert_cut fm_expert_cut(const struct fm_expert_form *form, enum fm_weight_part part)
{
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    int n = fm_expert_cuts(cut, form, part);
    assert(n == 1);
    (void)n;
    return cut[0];
}

bool fm_expert_cut_is_range(const struct fm_expert_form *form, const struct fm_expert_cut *cut)
{
    return !cut->columns && cut->rows == fm_expert_part_rows(form, cut->of);
}

uint64_t fm_expert_cut_channel(const struct fm_expert_cut *cut, int H)
{
    return (uint64_t)cut->rows * fm_expert_part_row(cut->of, H);
}

int fm_expert_parts(const struct fm_expert_form *form)
{
    return form->bias ? FM_EXPERT_PARTS_MAX : FM_EXPERT_PARTS_MAX - 1;
}

const char *fm_expert_part_name(enum fm_weight_part part)
{
    static const char *const name[FM_EXPERT_PARTS_MAX] = {"gate_up", "down", "gate_up_bias"};
    return name[part - FM_PART_GATE_UP];
}

int fm_expert_part_rows(const struct fm_expert_form *form, enum fm_weight_part part)
{
    return part == FM_PART_DOWN_T ? 1 : form->rows;
}

uint64_t fm_expert_part_row(enum fm_weight_part part, int H)
{
    return part == FM_PART_BIAS ? 1 : (uint64_t)H;
}

int fm_expert_part_shape(uint64_t shape[3], const struct fm_config *c, enum fm_weight_part part)
{
    shape[0] = (uint64_t)c->E;
    shape[1] = (uint64_t)c->I * (uint64_t)fm_expert_part_rows(c->expert, part);
    shape[2] = (uint64_t)c->H;
    return part == FM_PART_BIAS ? 2 : 3;
}

uint64_t fm_expert_channel_weights(const struct fm_expert_form *form, int H)
{
    return ((uint64_t)form->rows + 1) * (uint64_t)H;
}

uint64_t fm_expert_channel_params(const struct fm_expert_form *form, int H)
{
    return fm_expert_channel_weights(form, H) + (form->bias ? (uint64_t)form->rows : 0);
}
