/* What fm-bench kernels measured, as a table, JSON and a plot. */
#include "cmd/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/plot.h"
#include "lib/report.h"

void fm_figures_kernels(FILE *out, const struct fm_kernelbench *b)
{
    char bytes[32];
    fm_cli_bytes(bytes, b->bytes);
    fprintf(out, "H %d, I %d, %d experts, top-%d, %s: %s of weights\n", b->H, b->I, b->E, b->K,
            b->dtype, bytes);
    if (b->rows == 0)
        return;
    fprintf(out, "%s, %d threads; libfm_clip: %s; oneDNN %s\n", b->cpu, b->threads, b->path,
            b->dnnl);
    fprintf(out, "read bandwidth %.1f GB/s, oneDNN's product %.1f GFLOP/s\n", 1e-9 * b->bandwidth,
            1e-9 * b->peak);
    if (*b->gpu)
        fprintf(out, "%s: read bandwidth %.1f GB/s, cuBLAS's product %.1f GFLOP/s\n", b->gpu,
                1e-9 * b->gpu_bandwidth, 1e-9 * b->gpu_peak);
    fprintf(out, "\n");
    fprintf(out,
            "| tokens | kernel | removed | ms | GB/s | GFLOP/s | of roofline | speed-up | ideal "
            "| error |\n| --: | :-- | --: | --: | --: | --: | --: | --: | --: | --: |\n");
    for (int i = 0; i < b->rows; i++) {
        const struct fm_kernelbench_row *r = &b->row[i];
        if (!(r->seconds > 0))
            continue;
        fprintf(out, "| %d | %s | %.3f | %.2f | %.1f | %.1f | %.2f | %.2f | %.2f | ", r->tokens,
                r->kernel, r->budget, 1e3 * r->seconds, 1e-9 * r->bytes / r->seconds,
                1e-9 * r->flops / r->seconds, r->roofline / r->seconds, r->speedup, r->ideal);
        if (isnan(r->error))
            fprintf(out, "|\n");
        else
            fprintf(out, "%.1e |\n", r->error);
    }
}

static cJSON *row_json(const struct fm_kernelbench_row *r)
{
    cJSON *o = cJSON_CreateObject();
    fm_report_uint(o, "tokens", (uint64_t)r->tokens);
    cJSON_AddStringToObject(o, "kernel", r->kernel);
    fm_report_double(o, "removed", r->budget);
    fm_report_uint(o, "experts", (uint64_t)r->experts);
    fm_report_double(o, "seconds", r->seconds);
    fm_report_double(o, "bytes", r->bytes);
    fm_report_double(o, "flops", r->flops);
    fm_report_double(o, "bytes_per_second", r->bytes / r->seconds);
    fm_report_double(o, "flops_per_second", r->flops / r->seconds);
    fm_report_double(o, "of_roofline", r->roofline / r->seconds);
    fm_report_double(o, "speedup", r->speedup);
    fm_report_double(o, "ideal", r->ideal);
    if (!isnan(r->error))
        fm_report_double(o, "error", r->error);
    return o;
}

cJSON *fm_figures_kernels_json(const struct fm_kernelbench *b)
{
    cJSON *o = fm_report_begin("fm-bench kernels");
    fm_report_uint(o, "hidden", (uint64_t)b->H);
    fm_report_uint(o, "channels", (uint64_t)b->I);
    fm_report_uint(o, "experts", (uint64_t)b->E);
    fm_report_uint(o, "experts_per_token", (uint64_t)b->K);
    cJSON_AddStringToObject(o, "dtype", b->dtype);
    fm_report_uint(o, "bytes", b->bytes);
    if (b->rows == 0)
        return o;
    cJSON_AddStringToObject(o, "cpu", b->cpu);
    fm_report_uint(o, "threads", (uint64_t)b->threads);
    cJSON_AddStringToObject(o, "path", b->path);
    cJSON_AddStringToObject(o, "onednn", b->dnnl);
    fm_report_double(o, "read_bytes_per_second", b->bandwidth);
    fm_report_double(o, "peak_flops_per_second", b->peak);
    if (*b->gpu) {
        cJSON_AddStringToObject(o, "gpu", b->gpu);
        fm_report_double(o, "gpu_read_bytes_per_second", b->gpu_bandwidth);
        fm_report_double(o, "gpu_peak_flops_per_second", b->gpu_peak);
    }
    cJSON *rows = cJSON_AddArrayToObject(o, "rows");
    for (int i = 0; i < b->rows; i++)
        if (b->row[i].seconds > 0)
            cJSON_AddItemToArray(rows, row_json(&b->row[i]));
    return o;
}

/* Rows of one curve: libfm_clip at one number of tokens, or its ideal. */
static int add_series(struct fm_plot *plot, char name[32], double *v,
                      const struct fm_kernelbench_row *row, int count, bool ideal)
{
    snprintf(name, 32, ideal ? "ideal, %d tokens" : "%d tokens", row->tokens);
    for (int i = 0; i < count; i++) {
        v[i] = row[i].budget;
        v[count + i] = ideal ? row[i].ideal : row[i].speedup;
    }
    plot->series[plot->count++] = (struct fm_plot_series){name, v, v + count, count};
    return 2 * count;
}

int fm_figures_kernels_plot(const struct fm_kernelbench *b, const char *path, struct fm_err *err)
{
    struct fm_plot plot = {.title = "Speed-up of a clipped layer over its full width",
                           .x_label = "share of the layer's channels removed",
                           .y_label = "speed-up"};
    char name[FM_PLOT_SERIES_MAX][32];
    double *v = calloc(4 * (size_t)b->rows + 1, sizeof *v);
    int used = 0, last = 0;
    if (!v)
        return fm_fail(err, FM_ENOMEM, "no memory for the plot");
    for (int i = 0, n; i < b->rows; i += n) {
        for (n = 1; i + n < b->rows && b->row[i + n].kernel == b->row[i].kernel &&
                    b->row[i + n].tokens == b->row[i].tokens;)
            n++;
        if (strcmp(b->row[i].kernel, "oneDNN") == 0 || !(b->row[i].seconds > 0) ||
            plot.count + 1 >= FM_PLOT_SERIES_MAX)
            continue;
        used += add_series(&plot, name[plot.count], v + used, &b->row[i], n, false);
        last = i;
    }
    if (plot.count > 0) {
        int n = plot.series[0].count;
        add_series(&plot, name[plot.count], v + used, &b->row[last], n, true);
    }
    int code = fm_plot_write(&plot, path, err);
    free(v);
    return code;
}
