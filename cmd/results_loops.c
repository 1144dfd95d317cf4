/*
 * Prints loops in generated texts as a table of files, with the longest loops of each, and as JSON.
 */
#include "cmd/results.h"

#include <inttypes.h>

#include "lib/base/printable.h"
#include "lib/run/report.h"

/* A share in percent; blanks if it is of nothing. */
static void print_share(FILE *out, uint64_t part, uint64_t of)
{
    if (of)
        fprintf(out, " %7.1f", 100.0 * (double)part / (double)of);
    else
        fprintf(out, " %7s", "");
}

static void print_file(FILE *out, const struct fm_loops *l, const char *path)
{
    double texts = l->texts ? (double)l->texts : 1;
    fprintf(out, "%7" PRIu64 " %6" PRIu64 " %7" PRIu64 " %8.1f", l->texts, l->empty, l->failed,
            (double)l->words / texts);
    print_share(out, l->ended, l->told);
    print_share(out, l->looping, l->texts);
    if (l->long_enough)
        fprintf(out, " %10.4f", l->different / (double)l->long_enough);
    else
        fprintf(out, " %10s", "");
    fputs("  ", out);
    fm_printable_write(out, path);
    fputc('\n', out);
}

static void add_file(cJSON *files, const struct fm_loops *l, const char *path)
{
    cJSON *file = fm_json_add_object(files, NULL);
    fm_json_add_string(file, "path", path);
    fm_json_add_uint(file, "texts", l->texts);
    fm_json_add_uint(file, "empty", l->empty);
    fm_json_add_uint(file, "errors", l->failed);
    fm_json_add_uint(file, "words", l->words);
    fm_json_add_uint(file, "told", l->told);
    fm_json_add_uint(file, "ended", l->ended);
    fm_json_add_uint(file, "looping", l->looping);
    if (l->long_enough)
        fm_json_add_double(file, "distinct_four", l->different / (double)l->long_enough);
    cJSON *loops = fm_json_add_array(file, "loops");
    for (int k = 0; k < l->shown; k++) {
        const struct fm_loops_example *x = &l->worst[k];
        cJSON *one = fm_json_add_object(loops, NULL);
        fm_json_add_uint(one, "line", x->line);
        fm_json_add_uint(one, "text", x->text);
        fm_json_add_uint(one, "repeats", x->loop.repeats);
        fm_json_add_uint(one, "characters", x->loop.characters);
        fm_json_add_string(one, "unit", x->unit);
    }
}

void fm_results_loops(const struct fm_result *r, const void *self)
{
    const struct fm_results_texts *t = self;
    FILE *out = r->text;
    cJSON *files = fm_json_add_array(r->json, "files");
    fprintf(out, "%7s %6s %7s %8s %7s %7s %10s  %s\n", "texts", "empty", "errors", "words",
            "ended%", "loops%", "distinct-4", "file");
    for (int i = 0; i < t->n; i++) {
        print_file(out, &t->loops[i], t->path[i]);
        add_file(files, &t->loops[i], t->path[i]);
    }
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->loops[i].shown; k++) {
            const struct fm_loops_example *x = &t->loops[i].worst[k];
            fm_printable_write(out, t->path[i]);
            fprintf(out, ": line %" PRIu64 " ends in %" PRIu64 " times '%s%s'\n", x->line,
                    x->loop.repeats, x->unit,
                    x->loop.unit_bytes >= FM_LOOPS_UNIT_BYTES ? "..." : "");
        }
}
