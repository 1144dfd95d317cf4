/*
 * Helpers for tests of exports: the bundle of tests/unit/given.h, which make_bundle writes, its
 * exports, their sizes as other programs report them, and the findings of their verification.
 */
#ifndef FM_TESTS_EXPORTS_H
#define FM_TESTS_EXPORTS_H

#include "formats/json/json.h"
#include "lib/export/export.h"
#include "lib/export/list.h"
#include "lib/stage/pack.h"
#include "lib/verify/verify.h"
#include "tests/unit/given.h"
#include "tests/unit/test.h"

static char bundle[512];

static inline int make_bundle(void **unused)
{
    struct fm_pack_report made;
    (void)unused;
    snprintf(bundle, sizeof bundle, "%s", scratch("family.fm"));
    struct fm_run_options run = {.inputs.model = GIVEN_MODEL,
                                 .inputs.stream = given_stage("stage.fm", true),
                                 .outputs.path = bundle,
                                 .machine.device = "ref"};
    GIVEN_TRY(fm_pack(&run, &(struct fm_pack_options){0}, &made, &given_err));
    return 0;
}

/* Write head.fm to the scratch directory: the bundle up to its segment checksums, without weights.
 */
static inline void write_head(void)
{
    struct fm_bundle b = {0};
    char command[1024];
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    const struct fm_member *m = fm_bundle_find(&b, FM_MEMBER_SEGMENTS);
    snprintf(command, sizeof command, "head -c %llu %s > %s",
             (unsigned long long)(m->offset + (m->size + 511) / 512 * 512), bundle,
             scratch("head.fm"));
    scratch_check(system(command) == 0, command);
    fm_bundle_close(&b);
}

/* The budget of a member of the bundle. */
static inline double budget_of(int mask)
{
    struct fm_list list;
    GIVEN_TRY(fm_list_read(&list, bundle, false, &given_err));
    double budget = list.row[mask].budget;
    fm_list_release(&list);
    return budget;
}

static inline struct fm_run_options run_to(const char *path)
{
    return (struct fm_run_options){.inputs.stream = bundle,
                                   .outputs.path = path,
                                   .machine.device = "ref",
                                   .outputs.force = true};
}

static inline struct fm_export_report export_as(const char *path, struct fm_export_options options)
{
    struct fm_run_options run = run_to(path);
    struct fm_export_report report;
    GIVEN_TRY(fm_export(&run, &options, &report, &given_err));
    return report;
}

/* The findings of the last verification, one per line, its error and its report. */
static char found[65536];
static struct fm_err verify_said;
static struct fm_verify_report verify_report;
static struct fm_progress verify_progress; /* of the runs; zero: no messages */

static inline void keep_finding(void *self, const char *item, const char *what)
{
    size_t used = strlen(found);
    (void)self;
    snprintf(found + used, sizeof found - used, "%s: %s\n", item, what);
}

static inline int verify_as(const char *path, const char *against, bool function, const char *model)
{
    struct fm_run_options run = {.inputs.model = model,
                                 .inputs.tokens = {{.path = GIVEN_MODEL "/tokens.npy"}},
                                 .machine.device = "ref",
                                 .progress = verify_progress,
                                 .machine.memory = (uint64_t)256 << 20};
    struct fm_verify_options options = {
        .target = path, .against = against, .function = function, .finding = keep_finding};
    verify_said = (struct fm_err){0};
    found[0] = '\0';
    return fm_verify(&run, &options, &verify_report, &verify_said);
}

static inline int verify(const char *path, const char *against)
{
    return verify_as(path, against, false, NULL);
}

static inline void expect_whole(const char *path)
{
    if (verify(path, bundle) != FM_OK)
        fail_msg("%s: %s %s", path, verify_said.text, found);
}

static inline cJSON *read_json(const char *dir, const char *name)
{
    char path[1024];
    size_t size;
    cJSON *tree;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *text = scratch_read(path, &size);
    GIVEN_TRY(fm_json_tree(&tree, text, size, &given_err));
    free(text);
    return tree;
}

/* Bytes of all files of a directory, counted by another program. */
static inline uint64_t directory_bytes(const char *path)
{
    char command[1024];
    unsigned long long bytes = 0;
    snprintf(command, sizeof command,
             "find %s -type f -printf '%%s\\n' | awk '{n+=$1} END {print n}'", path);
    FILE *p = popen(command, "r");
    scratch_check(p && fscanf(p, "%llu", &bytes) == 1 && pclose(p) == 0, command);
    return bytes;
}

/* Write the export as a tar stream to the file `path`. */
static inline struct fm_export_report stream_as(const char *path, struct fm_export_options options)
{
    fflush(stdout);
    int saved = dup(1);
    FILE *f = fopen(path, "wb");
    scratch_check(f && dup2(fileno(f), 1) == 1, path);
    struct fm_export_report report = export_as("-", options);
    scratch_check(dup2(saved, 1) == 1, "dup2");
    close(saved);
    fclose(f);
    return report;
}

/* Options of an elastic export with a load cap: the members with budgets from low to high. */
static inline struct fm_export_options capped(double low, double high)
{
    return (struct fm_export_options){.layout = &fm_layout_elastic,
                                      .by = FM_BY_DEFAULT,
                                      .load_cap = true,
                                      .load_low = low,
                                      .load_high = high};
}

/* The i-th form of export, in the order of lists; NULL after the last.  The forms with a load
 * cap are the last. */
static inline const struct fm_list_kind *kind_of(int i)
{
    static struct fm_list_kind kind[FM_LIST_FORMS_MAX + 1];
    if (!kind[0].layout)
        fm_list_kinds(kind);
    return kind[i].layout ? &kind[i] : NULL;
}

static inline struct fm_export_options form_of(const struct fm_layout *layout)
{
    return (struct fm_export_options){.layout = layout, .budget = 0.4};
}

static inline struct fm_export_options form(int i)
{
    return kind_of(i)->capped ? capped(0.39, 1) : form_of(kind_of(i)->layout);
}

/* Flip a bit of the byte that is `back` bytes before the end of a tensor of a weight file. */
static inline void flip_tensor(const char *path, const char *name, uint64_t back)
{
    struct golden made;
    golden_open(&made, path);
    const struct fm_tensor *t = fm_safetensors_find(&made.st, name);
    scratch_flip(path, (long)(t->offset + t->size - back));
    golden_close(&made);
}

/* Bytes of all tensors in the weight files of a directory. */
static inline uint64_t tensor_bytes(const char *dir)
{
    char command[1024], path[1024];
    uint64_t bytes = 0;
    snprintf(command, sizeof command, "ls %s/*.safetensors", dir);
    FILE *p = popen(command, "r");
    scratch_check(p != NULL, command);
    while (fscanf(p, "%1023s", path) == 1) {
        struct golden made;
        golden_open(&made, path);
        for (size_t i = 0; i < made.st.count; i++)
            bytes += made.st.tensor[i].size;
        golden_close(&made);
    }
    pclose(p);
    return bytes;
}

#endif
