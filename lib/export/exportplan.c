/*
 * The plan of an export, made in this order: check the options; then determine the widths from the
 * member, tensors and files from the widths, and the texts from all of these.  A layout adds its
 * experts' tensors by the functions of tensors.c, and its files by fm_planned_place and
 * _add_file.
 */
#include "lib/export/exportplan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/quant/quant.h"
#include "formats/tensor/hfcache.h"
#include "formats/tensor/hftext.h"
#include "formats/tensor/hfwriter.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/trace.h"
#include "lib/export/tensors.h"
#include "lib/export/texts.h"
#include "lib/export/trust.h"
#include "lib/stage/ranking.h"

/* ---- options ---- */

int fm_exportplan_check(const struct fm_export_options *o, struct fm_err *err)
{
    const struct {
        bool asked;
        enum fm_layout_option what;
        const char *option, *value, *remedy;
    } use[] = {
        {o->by == FM_BY_FIT, FM_WITH_FIT, "--fit", "", "use --budget R for the one to start with"},
        {o->load_cap, FM_WITH_LOAD_CAP, "--load-cap", "", "omit it"},
        {o->keep_config[0], FM_WITH_KEYS, "--keep-config", "", "omit it"},
        {o->shard_bytes > 0, FM_WITH_SHARDS, "--shard-size", "", "omit it"},
        {o->quantise, FM_WITH_ROUNDED, "--weights ", o->quantise ? o->quantise->name : "",
         "use another layout"},
        {o->devices > 1, FM_WITH_TP, "--tp", "", "omit it"},
        {o->keep_extra, FM_WITH_EXTRA, "--keep-extra", "", "use another layout"},
    };
    for (size_t i = 0; i < sizeof use / sizeof *use; i++)
        if (use[i].asked && o->layout->cannot[use[i].what])
            return fm_fail(err, FM_EUSAGE, "%s%s: layout %s %s; %s", use[i].option, use[i].value,
                           o->layout->name, o->layout->cannot[use[i].what], use[i].remedy);
    if (o->by == FM_BY_DEFAULT && !o->layout->all_members)
        return fm_fail(err, FM_EUSAGE, "--export needs one of --budget R and --fit SIZE");
    if (o->load_cap && !(o->load_low >= 0 && o->load_low <= o->load_high && o->load_high <= 1))
        return fm_fail(err, FM_EUSAGE,
                       "--load-cap %g:%g: give two shares from 0 to 1, the lower one first",
                       o->load_low, o->load_high);
    return fm_trust_check(o, err);
}

int fm_exportplan_serve(struct fm_export_options *o, enum fm_server server, struct fm_err *err)
{
    bool widths = o->quantise && !o->layout->modeling;
    o->server = widths ? server : FM_SERVER_ANY;
    if (widths || server == FM_SERVER_ANY)
        return FM_OK;
    if (server == FM_SERVER_VLLM)
        return fm_layouts_vllm(&o->layout, err);
    return fm_fail(
        err, FM_EUSAGE,
        "--for %s only affects the width of a uniform export with --weights FORMAT; omit it",
        fm_server_name(server));
}

bool fm_exportplan_keeps(const struct fm_export_options *o, double budget)
{
    return !o->load_cap || (budget >= o->load_low - FM_EXPORTPLAN_SLACK &&
                            budget <= o->load_high + FM_EXPORTPLAN_SLACK);
}

/* ---- for these options ---- */

/* Set the first and the last of the members inside a load cap. */
static int keep_members(struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_export_options *o = &p->options;
    const struct fm_budget *b = p->from->budgets.budget;
    int n = p->from->budgets.masks.count;
    p->last = n - 1;
    while (p->first < n && !fm_exportplan_keeps(o, b[p->first].budget))
        p->first++;
    while (p->last > p->first && !fm_exportplan_keeps(o, b[p->last].budget))
        p->last--;
    if (p->first < n)
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "--load-cap %g:%g contains none of the family's %d budgets, %.6f to %.6f",
                   o->load_low, o->load_high, n, b[0].budget, b[n - 1].budget);
}

static int check_values(const struct fm_exportplan *p, struct fm_err *err)
{
    const char *given = p->options.base_model;
    if (given && (!fm_hfcache_is_name(given) || strlen(given) >= sizeof p->from->name))
        return fm_fail(err, FM_EUSAGE, "--base-model '%.64s' is not a name of the form org/name",
                       given);
    return fm_trust_check_keys(p, err);
}

static int check_pad(const struct fm_exportplan *p, struct fm_err *err)
{
    uint32_t pad = p->options.pad_multiple;
    int I = p->from->config.I;
    if (pad > (uint32_t)I)
        return fm_fail(err, FM_EUSAGE,
                       "--pad-multiple %u: experts here have %d channels; use 1 to %d", pad, I, I);
    return FM_OK;
}

/* Check that there are extra tensors to keep, and that their codes have a known format. */
static int check_extra(const struct fm_exportplan *p, struct fm_err *err)
{
    if (!p->options.keep_extra)
        return FM_OK;
    if (p->from->extra.tensors == 0)
        return fm_fail(err, FM_EUSAGE,
                       "--keep-extra: %s has no layers for multi-token prediction; omit it",
                       p->from->bundle.file.path);
    for (size_t i = 0; i < p->from->rests; i++) {
        const struct fm_tensor *t = &p->from->rest[i].t;
        bool codes = fm_dtype_bits(t->dtype) <= 8 || t->dtype == FM_I32;
        if (p->from->rest[i].extra && codes && p->from->rest[i].at.role == FM_STORED_VALUES)
            return fm_fail(err, FM_ECONFIG,
                           "--keep-extra: tensor '%s' is stored as %s, and config.json describes "
                           "no scales for it; omit the option",
                           t->name, fm_dtype_name(t->dtype));
    }
    return FM_OK;
}

/* Convert an order of channels to one of the groups that the export keeps whole. */
static int order_groups(int32_t *order, size_t channels, int32_t group, struct fm_err *err)
{
    for (size_t i = 0; i < channels; i++) {
        int32_t first = order[i - i % (size_t)group];
        if (first % group != 0 || order[i] != first + (int32_t)(i % (size_t)group))
            return fm_fail(err, FM_EFORMAT,
                           "member %s does not keep the groups of %d channels of the codes",
                           FM_MEMBER_RANKING, (int)group);
    }
    for (size_t i = 0; i < channels / (size_t)group; i++)
        order[i] = order[i * (size_t)group] / group;
    return FM_OK;
}

/* Read the order of the experts that are narrowed, which fm-rank --keep-extra found. */
static int open_ahead(struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_opened *from = p->from;
    const char *name = p->options.layout->name, *path = from->bundle.file.path;
    struct fm_ranking r;
    p->narrowed = p->options.keep_extra && p->options.layout->one_width && from->extra.experts;
    if (p->narrowed && fm_extra_can_draft(&from->extra, &from->config, err))
        return fm_within(err, "--keep-extra: layout %s", name);
    if (p->narrowed && p->options.quantise)
        return fm_fail(err, FM_ECONFIG,
                       "--keep-extra: --weights %s does not round layers for multi-token "
                       "prediction; omit one of the options",
                       p->options.quantise->name);
    if (!p->narrowed || from->foreseen)
        return FM_OK;
    if (fm_ranking_open(&r, &from->bundle, err))
        return err->code;
    size_t n = (size_t)r.E * (size_t)r.I;
    p->ahead = fm_alloc(n, sizeof *p->ahead, "the order of channels", err);
    if (p->ahead && r.ahead)
        memcpy(p->ahead, r.order + (size_t)r.M * n, n * sizeof *p->ahead);
    int rc = p->ahead ? FM_OK : err->code;
    if (!rc && !r.ahead)
        rc = fm_fail(err, FM_ECONFIG,
                     "--keep-extra: layout %s narrows the experts of layer %d, for multi-token "
                     "prediction, and %s has no order for them; rank with fm-rank --keep-extra, or "
                     "use another layout",
                     name, from->config.L, path);
    for (int e = 0; !rc && e < r.E; e++)
        if (order_groups(p->ahead + (size_t)e * (size_t)r.I, (size_t)r.I, p->packed.group, err))
            rc = fm_within(err, "%s", path);
    fm_ranking_release(&r);
    return rc;
}

/* H must be a multiple of the columns of a block, or of 16 if a block is a whole row. */
static int check_hidden(const struct fm_quantiser *q, const struct fm_config *to,
                        struct fm_err *err)
{
    int block = to->scheme.block_columns > 0 ? to->scheme.block_columns : 16;
    if (to->H % block == 0)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "--weights %s: rows of experts have %d values (hidden_size), which is not a "
                   "multiple of %d; choose another format",
                   q->name, to->H, block);
}

/* Set up an export whose experts are rounded to another format, whose quantization_config is read
 * as a checkpoint's would be. */
static int choose_format(struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_config *from = &p->from->config;
    const char *list, *body = fm_planned_format(p, &list), *name = p->options.quantise->name;
    char *text = NULL;
    cJSON *json = NULL;
    p->rounded = *from;
    p->rounded.schemes = NULL;
    if (!body)
        return fm_fail(err, FM_ECONFIG,
                       "--weights %s: %s has all experts of a layer in one tensor, and no server "
                       "reads this format there; use bf16%s%s",
                       name, from->family->name, from->family->fused_format ? " or " : "",
                       from->family->fused_format ? from->family->fused_format : "");
    int n = asprintf(&text, "{\"quantization_config\": {%s}}", body);
    int rc = n < 0 ? fm_fail(err, FM_ENOMEM, "no memory for config.json")
                   : fm_json_tree(&json, text, (size_t)n, err);
    if (!rc)
        rc = fm_families_storage(&p->rounded, json, err);
    cJSON_Delete(json);
    free(n < 0 ? NULL : text);
    return rc ? rc : check_hidden(p->options.quantise, &p->rounded, err);
}

/*
 * Choose between the codes of the bundle and their values, and experts rounded to other codes:
 *
 *     --weights   experts                                          p->coded
 *     FORMAT      rounded to it                                    EXPERTS (ours), or ROUNDED
 *     keep        codes of the bundle                              EXPERTS (ours), or ALL
 *     bf16        values                                           NONE
 *     -           codes, if the layout can have those of all       as for keep or bf16
 *                 layers; else values
 *
 * EXPERTS is for our modelling file, which decodes only experts; everything else is values then.
 */
static int choose_codes(struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_layout *layout = p->options.layout;
    bool has = p->from->packed.storage != NULL, keep = p->options.weights == FM_WEIGHTS_KEEP;
    if (keep && !has)
        return fm_fail(err, FM_ECONFIG, "--weights keep: %s has no codes to keep; omit the option",
                       p->from->bundle.file.path);
    const char *cannot = layout->cannot[FM_WITH_CODES];
    if (keep && cannot)
        return fm_fail(err, FM_ECONFIG,
                       "--weights keep: layout %s %s; use another layout, or --weights bf16",
                       layout->name, cannot);
    bool one = !layout->cannot[FM_WITH_FORMATS] || p->from->packed.forms == 1;
    if (keep && !one)
        return fm_fail(err, FM_ECONFIG,
                       "--weights keep: layout %s %s, and %s has several; use another layout, or "
                       "--weights bf16",
                       layout->name, layout->cannot[FM_WITH_FORMATS], p->from->bundle.file.path);
    if (p->options.quantise) {
        p->coded = p->options.layout->modeling ? FM_CODED_EXPERTS : FM_CODED_ROUNDED;
        return choose_format(p, err);
    }
    p->codes = has && one && !cannot && p->options.weights != FM_WEIGHTS_BF16;
    if (p->codes)
        p->coded = p->options.layout->modeling ? FM_CODED_EXPERTS : FM_CODED_ALL;
    p->packed = p->from->packed;
    if (!p->codes)
        fm_packed_plain(&p->packed, &p->from->config, p->from->dtype);
    return FM_OK;
}

/* The number of which an expert's channels on each device must be a multiple: the channel group of
 * the codes, the multiple that a format of rounded experts requires, or 1. */
static uint32_t quantum_of(const struct fm_exportplan *p)
{
    if (p->coded == FM_CODED_ROUNDED)
        return p->options.quantise->multiple[p->options.server];
    return p->options.quantise ? (uint32_t)fm_scheme_group(&p->rounded.scheme)
                               : (uint32_t)p->packed.group;
}

/* `width` rounded up to a multiple of pad_multiple and of p->multiple; unchanged without
 * options.pad_multiple and options.quantise. */
static uint32_t round_width(const struct fm_exportplan *p, uint32_t width)
{
    uint32_t pad = p->options.pad_multiple;
    if (pad <= 1 && !p->options.quantise)
        return width;
    return fm_actions_round(width, fm_actions_both(pad > 1 ? pad : 1, p->multiple),
                            p->from->config.I);
}

/* Choose the multiple of widths with which each of `devices` devices gets a valid width. */
static int choose_multiple(struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_layout *layout = p->options.layout;
    const struct fm_quantiser *q = p->options.quantise;
    uint32_t training = p->from->budgets.actions.multiple, n = p->options.devices;
    uint32_t I = (uint32_t)p->from->config.I, each = quantum_of(p);
    n = n > 1 ? n : 1;
    p->multiple = fm_actions_both(training, layout->multiple ? layout->multiple : 1);
    p->multiple = fm_actions_both(p->multiple, each);
    if (q && n > 1 && I % each == 0 && I % (each * n) != 0)
        return fm_fail(
            err, FM_ECONFIG,
            "--tp %u: experts have %u channels, and with --weights %s each device needs a "
            "multiple of %u; use a smaller --tp or another format",
            n, I, q->name, each);
    if (q && I % (each * n) != 0)
        return fm_fail(err, FM_ECONFIG,
                       "--weights %s: experts have %u channels, which is not a multiple of %u; "
                       "choose another format",
                       q->name, I, each);
    if (q)
        fm_packed_codes(&p->packed, &p->rounded, p->from->dtype,
                        fm_quantiser_scales(q, p->from->dtype));
    if (n == 1)
        return FM_OK;
    if (p->multiple > UINT32_MAX / n || p->multiple * n > I)
        return fm_fail(err, FM_ECONFIG,
                       "--tp %u: experts have %u channels, and each device needs a multiple of %u",
                       n, I, p->multiple);
    uint32_t pad = p->options.pad_multiple;
    p->options.pad_multiple = fm_actions_both(pad > 1 ? pad : 1, p->multiple * n);
    return FM_OK;
}

int fm_exportplan_begin(struct fm_exportplan *p, const struct fm_opened *from,
                        const struct fm_export_options *options, struct fm_err *err)
{
    *p = (struct fm_exportplan){.from = from, .options = *options};
    if (choose_codes(p, err) || choose_multiple(p, err))
        return err->code;
    size_t n = fm_opened_experts(from);
    p->widths.kept = fm_alloc(n, sizeof *p->widths.kept, "widths", err);
    p->widths.stored = fm_alloc(n, sizeof *p->widths.stored, "widths", err);
    p->planned_for = fm_alloc(n, sizeof *p->planned_for, "widths", err);
    if (!p->widths.kept || !p->widths.stored || !p->planned_for)
        return err->code;
    assert(p->packed.M == from->config.M &&
           from->config.I % p->packed.group == 0); /* invariant 2 */
    if (check_values(p, err) || check_extra(p, err) || open_ahead(p, err) || keep_members(p, err) ||
        check_pad(p, err))
        return err->code;
    if (options->keep_extra && options->layout->names == FM_NAMING_STOCK)
        p->wrapped = fm_hftext_wrapped(from->config_text, from->config_bytes);
    return FM_OK;
}

/* ---- widths ---- */

static uint64_t sum_of(const uint32_t *widths, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += widths[i];
    return sum;
}

void fm_exportplan_widths(struct fm_exportplan *p, int index)
{
    const struct fm_layout *layout = p->options.layout;
    size_t n = fm_opened_experts(p->from);
    struct fm_planned_widths *w = &p->widths;
    uint32_t *kept = w->kept;
    assert(index >= 0 && index < p->from->budgets.masks.count);
    p->index = index;
    memcpy(kept, fm_masks_widths(&p->from->budgets.masks, index), n * sizeof *kept);
    uint64_t before = sum_of(kept, n);
    if (layout->level)
        layout->level(p);
    w->by_layout = layout->leveled ? sum_of(kept, n) - before : 0;
    before = sum_of(kept, n);
    for (size_t i = 0; i < n; i++)
        kept[i] = round_width(p, kept[i]);
    w->by_pad = sum_of(kept, n) - before;
    memcpy(w->stored, w->kept, n * sizeof *w->stored);
    w->shared = p->from->config.shared;
    w->full = false;
    if (layout->store)
        layout->store(p);
    w->widest = 0;
    for (size_t i = 0; i < n; i++) {
        w->widest = w->stored[i] > w->widest ? w->stored[i] : w->widest;
        assert(kept[i] <= w->stored[i]);                       /* invariant 1 */
        assert(w->stored[i] % (uint32_t)p->packed.group == 0); /* invariant 2 */
    }
    assert(w->widest <= (uint32_t)p->from->config.I);
}

void fm_exportplan_served(const struct fm_exportplan *p, int index, uint32_t *widths)
{
    const uint32_t *mask = fm_masks_widths(&p->from->budgets.masks, index);
    assert(index >= p->first && index <= p->last);
    for (size_t i = 0; i < fm_opened_experts(p->from); i++)
        widths[i] = p->options.layout->all_members ? round_width(p, mask[i]) : p->widths.kept[i];
}

/* ---- files of at most --shard-size ---- */

static int add_files(struct fm_exportplan *p, struct fm_hfwriter *w, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; i < w->files && !rc; i++) {
        struct fm_hfwriter_file *f = &w->file[i];
        for (size_t n = 0; n < f->count; n++)
            fm_planned_place(p, &w->tensor[f->first + n], p->files);
        char *header = f->header;
        f->header = NULL;
        rc = fm_planned_add_file(p, f->name, header, f->header_bytes, f->file_bytes, true, err);
    }
    if (!rc && w->index) {
        char *index = w->index;
        w->index = NULL;
        rc = fm_planned_add_file(p, FM_HFWRITER_INDEX, index, w->index_bytes, w->index_bytes, false,
                                 err);
    }
    return rc;
}

/* Distribute all tensors over files of at most --shard-size, with the names that transformers
 * gives them, and an index. */
static int add_shards(struct fm_exportplan *p, struct fm_err *err)
{
    uint64_t shard_bytes = p->options.shard_bytes;
    struct fm_hfwriter w = {0};
    struct fm_tensor *tensor = fm_alloc(p->tensors, sizeof *tensor, "the plan of an export", err);
    if (!tensor)
        return err->code;
    for (size_t i = 0; i < p->tensors; i++)
        tensor[i] = p->tensor[i].t;
    int rc = fm_hfwriter_plan(&w, tensor, p->tensors,
                              shard_bytes ? shard_bytes : FM_EXPORT_SHARD_BYTES, err);
    if (!rc)
        rc = add_files(p, &w, err);
    fm_hfwriter_release(&w);
    free(tensor);
    return rc;
}

/* ---- all tensors and files, and the texts ---- */

static int compare_places(const void *a, const void *b)
{
    const struct fm_planned_tensor *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->t.offset != y->t.offset)
        return x->t.offset < y->t.offset ? -1 : 1;
    return strcmp(x->t.name, y->t.name);
}

/* Sort tensors in the order of the files, and update the indices in files and blocks. */
static void sort_tensors(struct fm_exportplan *p)
{
    qsort(p->tensor, p->tensors, sizeof *p->tensor, compare_places);
    for (size_t i = 0; i < p->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        struct fm_planned_file *f = &p->file[t->file];
        f->tensor = f->tensors++ ? f->tensor : i;
        assert(f->weights && f->tensor + f->tensors == i + 1); /* invariant 4 */
        if (t->blocks) {
            const struct fm_planned_block *last = &p->block[t->block + t->blocks - 1];
            assert(last->at + last->bytes == t->t.size); /* invariant 3 */
        }
        for (size_t b = t->block; b < t->block + t->blocks; b++)
            p->block[b].tensor = i;
    }
}

/* Two tensors or files with the same name occur only in a forged bundle. */
static int refuse_twins(const struct fm_exportplan *p, const char *what, const char *name,
                        struct fm_err *err)
{
    return fm_fail(err, FM_EFORMAT, "%s: the export would have two %s named '%s'",
                   p->from->bundle.file.path, what, name);
}

static int plan_weights(struct fm_exportplan *p, struct fm_err *err)
{
    const struct fm_layout *layout = p->options.layout;
    int rc = fm_tensors_rest(p, err);
    for (int m = 0; m < p->from->config.M && !rc; m++)
        rc = layout->experts(p, m, err);
    if (rc)
        return rc;
    fm_names_sort(p->tensor, p->tensors, sizeof *p->tensor);
    rc = layout->files ? layout->files(p, err) : add_shards(p, err);
    const char *twin = rc ? NULL : fm_names_twin(p->tensor, p->tensors, sizeof *p->tensor);
    if (twin)
        rc = refuse_twins(p, "tensors", twin, err);
    if (rc)
        return rc;
    sort_tensors(p);
    p->weight_files = p->files;
    memcpy(p->planned_for, p->widths.stored, fm_opened_experts(p->from) * sizeof *p->planned_for);
    return FM_OK;
}

/* Check that no two files have the same name, before anything is written. */
static int check_files(const struct fm_exportplan *p, struct fm_err *err)
{
    const char **name = fm_alloc(p->files, sizeof *name, "the names of an export", err);
    if (!name)
        return err->code;
    for (size_t i = 0; i < p->files; i++)
        name[i] = p->file[i].name;
    fm_names_sort(name, p->files, sizeof *name);
    const char *twin = fm_names_twin(name, p->files, sizeof *name);
    int rc = twin ? refuse_twins(p, "files", twin, err) : FM_OK;
    free(name);
    return rc;
}

int fm_exportplan_member(struct fm_exportplan *p, int index, struct fm_err *err)
{
    fm_exportplan_widths(p, index);
    bool fits = /* invariant 5 */
        p->weight_files > 0 && memcmp(p->planned_for, p->widths.stored,
                                      fm_opened_experts(p->from) * sizeof *p->planned_for) == 0;
    fm_planned_forget(p, fits ? p->weight_files : 0);
    if (!fits && plan_weights(p, err))
        return err->code;
    if (!p->from->foreseen && fm_texts_plan(p, err))
        return err->code;
    if (check_files(p, err))
        return err->code;
    assert(!FM_DEBUGGING || fm_planned_sane(p));
    return FM_OK;
}

/* ---- one layer for all ---- */

int fm_exportplan_same_layers(struct fm_exportplan *p, int index, uint64_t *bytes,
                              struct fm_err *err)
{
    assert(p->options.layout->one_width);
    fm_exportplan_widths(p, index);
    fm_planned_forget(p, 0);
    int rc = fm_tensors_rest(p, err);
    size_t rest = p->tensors;
    if (!rc)
        rc = p->options.layout->experts(p, 0, err);
    *bytes = 0;
    for (size_t i = 0; i < p->tensors; i++) {
        const struct fm_tensor *t = &p->tensor[i].t;
        uint64_t bits = fm_tensor_count(t) * (uint64_t)fm_dtype_bits(t->dtype);
        if (!rc && bits % 8 != 0)
            rc = fm_fail(err, FM_ECONFIG, "tensor '%s' has no size in whole bytes", t->name);
        *bytes += bits / 8 * (i < rest ? 1 : (uint64_t)p->from->config.M);
    }
    fm_planned_forget(p, 0);
    return rc;
}
