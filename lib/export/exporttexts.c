/* What an export says of itself beside config.json and the model card, and what it carries along.
 */
#include "lib/export/exporter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/runtime/modeling.h"
#include "formats/tensor/hfwriter.h"

/* True for names that an export writes itself, whatever the checkpoint carried. */
static bool is_own(const char *name)
{
    static const char *const own[] = {"config.json", FM_EXPORT_JSON, FM_EXPORT_CARD,
                                      FM_EXPORT_MODELING, FM_HFWRITER_INDEX};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return false;
}

bool fm_exporter_models(const struct fm_exporter *x)
{
    enum fm_layout layout = x->options->layout;
    return layout == FM_LAYOUT_RAGGED || layout == FM_LAYOUT_ELASTIC || layout == FM_LAYOUT_LAYER;
}

int fm_exporter_add_text(struct fm_exporter *x, const char *name, struct fm_text *t,
                         struct fm_err *err)
{
    size_t size = t->size;
    char *data = t->data;
    bool failed = t->failed;
    *t = (struct fm_text){0};
    if (!failed)
        return fm_exporter_add_file(x, name, data, size, size, false, err);
    free(data);
    return fm_fail(err, FM_ENOMEM, "no memory for %s", name);
}

/* ---- fm-export.json ---- */

static void say_digest(struct fm_text *t, const struct fm_exporter *x, const char *key,
                       const char *member, const char *end)
{
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &fm_bundle_find(&x->bundle, member)->digest);
    fm_text_printf(t, "  \"%s\": \"%s\"%s\n", key, hex, end);
}

static uint64_t shard_size(const struct fm_export_options *o)
{
    if (o->layout == FM_LAYOUT_NATIVE)
        return 0;
    return o->shard_bytes ? o->shard_bytes : FM_EXPORT_SHARD_BYTES;
}

static int add_export_json(struct fm_exporter *x, struct fm_err *err)
{
    const struct fm_mask *mask = &x->budgets.family.mask[x->index];
    const struct fm_export_options *o = x->options;
    struct fm_text t = {0};
    fm_text_printf(&t, "{\n  \"schema\": 1,\n  \"suite\": \"fm\",\n  \"layout\": \"%s\",\n",
                   fm_layout_name(o->layout));
    fm_text_printf(&t, "  \"for\": \"%s\",\n  \"index\": %d,\n", o->vllm ? "vllm" : "any",
                   x->index);
    fm_text_printf(&t, "  \"removed\": %" PRIu64 ",\n  \"budget\": %.17g,\n", mask->removed,
                   x->budgets.budget[x->index].budget);
    if (o->load_cap) {
        fm_text_printf(&t, "  \"load_cap\": ");
        fm_exporter_say_cap(&t, o);
        fm_text_printf(&t, ",\n");
    }
    fm_text_printf(&t, "  \"pad_multiple\": %" PRIu32 ",\n  \"shard_size\": %" PRIu64 ",\n",
                   o->pad_multiple ? o->pad_multiple : 1, shard_size(o));
    fm_text_printf(&t, "  \"widths\": ");
    fm_exporter_say_widths(&t, x, x->widths, "  ");
    fm_text_printf(&t, ",\n");
    say_digest(&t, x, "config", FM_MEMBER_CARRIED "config.json", ",");
    say_digest(&t, x, "ranking", FM_MEMBER_RANKING, "");
    fm_text_printf(&t, "}\n");
    return fm_exporter_add_text(x, FM_EXPORT_JSON, &t, err);
}

/* ---- all of them ---- */

static int add_carried(struct fm_exporter *x, const struct fm_member *m, struct fm_err *err)
{
    const char *name = m->name + strlen(FM_MEMBER_CARRIED);
    if (is_own(name))
        return FM_OK;
    int rc = fm_exporter_add_file(x, name, NULL, m->size, m->size, false, err);
    if (rc == FM_OK)
        x->file[x->files - 1].member = m;
    return rc;
}

static int add_modeling(struct fm_exporter *x, struct fm_err *err)
{
    struct fm_text t = {0};
    size_t size;
    const char *text = fm_modeling_text(&size);
    fm_text_add(&t, text, size);
    return fm_exporter_add_text(x, FM_EXPORT_MODELING, &t, err);
}

int fm_exporter_texts(struct fm_exporter *x, struct fm_err *err)
{
    int rc = fm_exporter_config(x, err);
    if (rc == FM_OK)
        rc = add_export_json(x, err);
    if (rc == FM_OK)
        rc = fm_exporter_card(x, err);
    if (rc == FM_OK && fm_exporter_models(x))
        rc = add_modeling(x, err);
    for (size_t i = 0; i < x->bundle.members && rc == FM_OK; i++)
        if (strncmp(x->bundle.member[i].name, FM_MEMBER_CARRIED, strlen(FM_MEMBER_CARRIED)) == 0)
            rc = add_carried(x, &x->bundle.member[i], err);
    return rc;
}
