/* The table of clipped layers in tests/measure/RESULTS.md equals tests/measure/kernels.json, line
 * by line. */
#include <cjson/cJSON.h>

#include "tests/unit/test.h"

static char *read_text(const char *path)
{
    FILE *in = fopen(path, "re");
    size_t room = 1 << 20;
    char *text = calloc(1, room);
    assert_non_null(in);
    assert_non_null(text);
    assert_true(fread(text, 1, room - 1, in) < room - 1);
    fclose(in);
    return text;
}

static double number(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    if (!cJSON_IsNumber(v))
        fail_msg("kernels.json: no number '%s'", key);
    return v->valuedouble;
}

static const char *word(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    if (!cJSON_IsString(v))
        fail_msg("kernels.json: no text '%s'", key);
    return v->valuestring;
}

static void expect_line(const char *table, const char *line)
{
    const char *at = strstr(table, line);
    if (!at || at[-1] != '\n' || at[strlen(line)] != '\n')
        fail_msg("tests/measure/RESULTS.md has no line '%s': run make bench-kernels", line);
}

/* As cmd/results_kernels.c prints it. */
static void expect_row(const char *table, const cJSON *r)
{
    char line[256], error[32] = "";
    const cJSON *e = cJSON_GetObjectItemCaseSensitive(r, "error");
    if (e)
        snprintf(error, sizeof error, "%.1e ", e->valuedouble);
    snprintf(
        line, sizeof line, "| %.0f | %s | %.3f | %.2f | %.1f | %.1f | %.2f | %.2f | %.2f | %s|",
        number(r, "tokens"), word(r, "kernel"), number(r, "removed"), 1e3 * number(r, "seconds"),
        1e-9 * number(r, "bytes_per_second"), 1e-9 * number(r, "flops_per_second"),
        number(r, "of_roofline"), number(r, "speedup"), number(r, "ideal"), error);
    expect_line(table, line);
}

TEST(the_table_in_the_page_is_that_of_the_json)
{
    char *page = read_text("tests/measure/RESULTS.md"),
         *json = read_text("tests/measure/kernels.json"), line[256];
    char *table = strstr(page, "<!-- kernels -->\n");
    assert_non_null(table);
    char *end = strstr(table, "\n<!-- end of kernels -->\n");
    assert_non_null(end);
    end[1] = 0;
    cJSON *o = cJSON_Parse(json);
    assert_non_null(o);
    snprintf(line, sizeof line, "%s, %.0f threads; libfm_clip: %s; oneDNN %s", word(o, "cpu"),
             number(o, "threads"), word(o, "path"), word(o, "onednn"));
    expect_line(table, line);
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(o, "rows"), *row;
    int lines = 0;
    for (const char *p = table; (p = strstr(p, "\n| ")); p++)
        lines++;
    assert_true(cJSON_GetArraySize(rows) > 0);
    assert_int_equal(lines, cJSON_GetArraySize(rows) + 2); /* a head of two lines */
    cJSON_ArrayForEach(row, rows) expect_row(table, row);
    cJSON_Delete(o);
    free(page);
    free(json);
}

TEST_MAIN(NULL, NULL)
