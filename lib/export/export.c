#include "lib/export/export.h"

#include <string.h>

#include "formats/file/file.h"
#include "lib/base/clock.h"
#include "lib/base/pool.h"
#include "lib/export/exporter.h"

static uint64_t piece_memory(const struct fm_exporter *x)
{
    uint64_t most = 0;
    for (size_t i = 0; i < x->tensors; i++) {
        uint64_t piece = fm_exporter_piece(x, &x->tensor[i], FM_EXPORT_PIECE);
        piece = piece < x->tensor[i].t.size ? piece : x->tensor[i].t.size;
        piece *= x->tensor[i].fill == FM_FILL_COPY || x->tensor[i].fill == FM_FILL_FLAT ? 1 : 3;
        most = piece > most ? piece : most;
    }
    return most * (uint64_t)fm_pool_threads();
}

/* What rounding up costs, nothing where every expert is stored at full width; what a cap frees. */
static void report_channels(struct fm_export_report *r, const struct fm_exporter *x)
{
    uint64_t channel = fm_exporter_channel_bytes(x);
    r->channels_layout = x->channels_layout;
    r->bytes_layout = x->channels_layout * channel;
    r->channels_pad = x->channels_pad;
    r->bytes_pad = fm_exporter_full(x) ? 0 : x->channels_pad * channel;
    if (!r->layout->family)
        return;
    r->members = x->last - x->first + 1;
    r->channels_freed = fm_exporter_freed(x);
    r->bytes_freed = r->channels_freed * channel;
}

static int plan(struct fm_exporter *x, struct fm_export_report *r, struct fm_err *err)
{
    const struct fm_export_options *o = x->options;
    bool stream = strcmp(x->run->output, "-") == 0;
    int index = 0, rc = fm_exporter_check(o, err);
    if (rc == FM_OK)
        rc = fm_exporter_open(x, err);
    if (rc == FM_OK)
        rc = fm_exporter_choose(x, &index, err);
    if (rc == FM_OK)
        rc = fm_exporter_plan(x, index, err);
    if (rc != FM_OK)
        return rc;
    *r = (struct fm_export_report){.layout = o->layout,
                                   .index = index,
                                   .budget = x->budgets.budget[index].budget,
                                   .bytes_weights = fm_exporter_weight_bytes(x),
                                   .bytes_out =
                                       stream ? fm_exporter_stream_bytes(x) : fm_exporter_bytes(x),
                                   .bytes_memory = piece_memory(x),
                                   .files = (int)x->files};
    r->width_uniform = o->layout->one_width ? x->stored[0] : 0;
    report_channels(r, x);
    if (stream)
        return FM_OK;
    rc = fm_file_free_space(x->run->output, &r->bytes_free, err);
    if (rc == FM_OK && r->bytes_free < r->bytes_out)
        rc = fm_fail(err, FM_ECREATE, "%s: the export takes %llu bytes, %llu are free there",
                     x->run->output, (unsigned long long)r->bytes_out,
                     (unsigned long long)r->bytes_free);
    return rc;
}

int fm_export(const struct fm_run_options *run, const struct fm_export_options *options,
              struct fm_export_report *report, struct fm_err *err)
{
    double start = fm_clock_now();
    struct fm_exporter x = {.run = run, .options = options};
    *report = (struct fm_export_report){0};
    int rc = plan(&x, report, err);
    if (rc == FM_OK)
        rc = fm_exporter_write(&x, err);
    fm_exporter_release(&x);
    report->seconds = fm_clock_now() - start;
    return rc;
}

int fm_export_plan(const struct fm_run_options *run, const struct fm_export_options *options,
                   struct fm_export_report *report, struct fm_err *err)
{
    struct fm_exporter x = {.run = run, .options = options};
    *report = (struct fm_export_report){0};
    int rc = plan(&x, report, err);
    fm_exporter_release(&x);
    return rc;
}
