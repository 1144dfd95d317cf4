/* fm-verify: check a bundle, a stage stream or an export, and report all faults; sign a
 * directory or a file, and verify a signature. */
#include <stdlib.h>

#include "cmd/cli.h"
#include "cmd/show.h"
#include "cmd/tools.h"
#include "lib/base/printable.h"
#include "lib/base/units.h"
#include "lib/export/list.h"
#include "lib/publish/sign.h"
#include "lib/verify/verify.h"

/* Findings and files that are not listed are lines of the text result, and arrays of its JSON. */
struct findings {
    FILE *out;
    cJSON *list, *not_listed; /* not_listed: NULL if all are listed */
};

static void add_finding(void *self, const char *item, const char *what)
{
    struct findings *f = self;
    fm_printable_write(f->out, item);
    fputs(": ", f->out);
    fm_printable_write(f->out, what);
    fputc('\n', f->out);
    cJSON *o = fm_json_add_object(f->list, NULL);
    fm_json_add_string(o, "item", item);
    fm_json_add_string(o, "what", what);
}

/* Print a line "about: NAME". */
static void print_name(FILE *out, const char *about, const char *name)
{
    fprintf(out, "%s: ", about);
    fm_printable_write(out, name);
    fputc('\n', out);
}

static void add_not_listed(void *self, const char *name)
{
    struct findings *f = self;
    print_name(f->out, "not listed", name);
    if (!f->not_listed)
        f->not_listed = cJSON_CreateArray();
    fm_json_add_string(f->not_listed, NULL, name);
}

static void describe(const struct fm_result *result, const struct fm_verify_report *r,
                     const struct findings *findings, int code)
{
    FILE *out = result->text;
    cJSON *o = result->json;
    char bytes[32];
    fm_units_bytes(bytes, r->bytes);
    fm_json_add_bool(o, "ok", !code);
    fm_json_add_string(o, "kind", r->kind);
    if (r->index >= 0) {
        fm_json_add_uint(o, "index", (uint64_t)r->index);
        fm_json_add_double(o, "budget", r->budget);
    }
    if (r->function)
        fprintf(out, "function: loss %.6f, want %.6f; log-probabilities differ by %.3g at most\n",
                r->loss, r->loss_want, r->logprob_diff_max);
    cJSON *held = r->codes ? fm_json_add_array(o, "code") : NULL;
    for (int i = 0; i < r->codes; i++) {
        cJSON *file = fm_json_add_object(held, NULL);
        fprintf(out, "code: %s, %s\n", r->code[i].name,
                r->code[i].ours ? "the fm suite's" : "the checkpoint author's");
        fm_json_add_string(file, "file", r->code[i].name);
        fm_json_add_string(file, "author", r->code[i].ours ? "suite" : "checkpoint");
    }
    cJSON *skipped = r->skips ? fm_json_add_array(o, "not_compared") : NULL;
    for (int i = 0; i < r->skips; i++) {
        fprintf(out, "%s%s%s", i ? ", " : "not compared: ", r->skip[i],
                i + 1 == r->skips ? "\n" : "");
        fm_json_add_string(skipped, NULL, r->skip[i]);
    }
    fprintf(out, "%s", r->kind);
    if (r->index >= 0)
        fprintf(out, " at budget %.4f", r->budget);
    fprintf(out, ": %llu item%s, %s: ", (unsigned long long)r->items, r->items == 1 ? "" : "s",
            bytes);
    if (r->failed)
        fprintf(out, "%llu fault%s\n", (unsigned long long)r->failed, r->failed == 1 ? "" : "s");
    else
        fprintf(out, "%s\n", !code ? "ok" : "not verified");
    fm_json_add_uint(o, "items", r->items);
    fm_json_add_uint(o, "failed", r->failed);
    fm_json_add_uint(o, "bytes", r->bytes);
    fm_json_add(o, "findings", findings->list);
    if (findings->not_listed)
        fm_json_add(o, "not_listed", findings->not_listed);
    if (r->function) {
        fm_json_add_double(o, "loss", r->loss);
        fm_json_add_double(o, "loss_want", r->loss_want);
        fm_json_add_double(o, "logprob_diff_max", r->logprob_diff_max);
    }
    fm_json_add_double(o, "seconds", r->seconds);
}

/* Print the result of a check that ended with *err; returns the exit status. */
static int print_checked(const struct fm_cli *cli, struct fm_cli_text *text, cJSON *json,
                         struct fm_err *err)
{
    struct fm_err print = {0};
    if (fm_cli_result(cli, text, json, &print) && !err->code)
        *err = print;
    return err->code;
}

/* The files and bytes that a check of each file would read, and what would be done with them. */
struct planned {
    uint64_t files, bytes;
    const char *done; /* "checked" */
};

static void describe_planned(const struct fm_result *r, const void *self)
{
    const struct planned *p = self;
    char size[32];
    fm_units_bytes(size, p->bytes);
    fprintf(r->text, "%llu file%s, %s: would be read and %s\n", (unsigned long long)p->files,
            p->files == 1 ? "" : "s", size, p->done);
    fm_json_add_bool(r->json, "dry_run", 1);
    fm_json_add_uint(r->json, "items", p->files);
    fm_json_add_uint(r->json, "bytes", p->bytes);
}

/* --dry-run of a directory without its bundle. */
static int dry_run_table(const struct fm_cli *cli, const struct fm_verify_options *options,
                         struct fm_err *err)
{
    struct planned p = {.done = "checked"};
    int rc = fm_verify_table_listed(options->target, &p.files, &p.bytes, err);
    return rc ? rc : fm_show(&(struct fm_shown){cli, "fm-verify", describe_planned, &p, NULL}, err);
}

static void describe_stream(const struct fm_result *r, const void *self)
{
    const struct fm_list *list = self;
    fprintf(r->text, "stage %s, %d budgets: would be read and checked\n", list->stage, list->rows);
    fm_json_add_bool(r->json, "dry_run", 1);
    fm_json_add_string(r->json, "stage", list->stage);
}

/* --dry-run: check that the stream can be opened, and that its first members are valid. */
static int dry_run(const struct fm_cli *cli, const struct fm_verify_options *options,
                   struct fm_err *err)
{
    struct fm_list list;
    int rc = fm_list_read(&list, options->against ? options->against : options->target, false, err);
    if (!rc)
        rc = fm_show(&(struct fm_shown){cli, "fm-verify", describe_stream, &list, NULL}, err);
    fm_list_release(&list);
    return rc;
}

/* Modes.  Tokens and machine options apply only with --function; BESIDE is --function with
 * --against, which runs an export and its bundle. */
enum { FILES = 1, FUNCTION = 2, BESIDE = 4, SIGN = 8, TRUST = 16 };

static const struct fm_cli_scope scope[] = {
    {.name = "batch", .modes = FM_CLI_ABSENT},
    {.name = "model", .modes = FILES | FUNCTION},
    {.name = "no-sandbox", .modes = FILES | SIGN | TRUST},
    {.groups = FM_CLI_TOKENS | FM_CLI_EVAL | FM_CLI_MACHINE, .modes = FUNCTION | BESIDE},
    {0},
};

/* ---- signatures ---- */

struct signing {
    struct fm_sign_options options;
    const char *private_key, *public_key; /* PEM files; NULL: not requested */
};

/* What was found while a signature was made or verified. */
struct signed_files {
    struct findings findings;
    cJSON *ignored;
};

static void add_ignored(void *self, const char *name)
{
    struct signed_files *f = self;
    print_name(f->findings.out, "ignored", name);
    fm_json_add_string(f->ignored, NULL, name);
}

static void add_unsigned(void *self, const char *name, const char *what)
{
    struct signed_files *f = self;
    add_finding(&f->findings, name, what);
}

static int dry_run_signature(const struct fm_cli *cli, const struct signing *s, struct fm_err *err)
{
    struct planned p = {.done = s->private_key ? "signed" : "compared with the signature"};
    int rc = fm_sign_plan(s->options.target, &p.files, &p.bytes, err);
    return rc ? rc : fm_show(&(struct fm_shown){cli, "fm-verify", describe_planned, &p, NULL}, err);
}

static void describe_signature(const struct fm_result *result, const struct signed_files *f,
                               const struct fm_sign_report *r, bool made, int code)
{
    FILE *out = result->text;
    cJSON *o = result->json;
    char bytes[32];
    fm_units_bytes(bytes, r->bytes);
    if (r->links)
        fprintf(out, "links followed to blobs of their Hugging Face cache: %llu\n",
                (unsigned long long)r->links);
    if (r->signed_as)
        print_name(out, "signed under another name", r->signed_as);
    fm_printable_write(out, r->signature);
    fprintf(out, ": %llu file%s, %s, %s key %.16s: %s\n", (unsigned long long)r->files,
            r->files == 1 ? "" : "s", bytes, r->curve, r->key,
            code   ? "not verified"
            : made ? "signed"
                   : "ok");
    fm_json_add_bool(o, "ok", !code);
    fm_json_add_string(o, "kind", "signature");
    fm_json_add_string(o, "signature", r->signature);
    fm_json_add_string(o, "curve", r->curve);
    fm_json_add_string(o, "key", r->key);
    fm_json_add_uint(o, "items", r->files);
    fm_json_add_uint(o, "failed", r->failed);
    fm_json_add_uint(o, "bytes", r->bytes);
    fm_json_add_uint(o, "links", r->links);
    if (r->signed_as)
        fm_json_add_string(o, "signed_as", r->signed_as);
    fm_json_add(o, "ignored", f->ignored);
    fm_json_add(o, "findings", f->findings.list);
    fm_json_add_double(o, "seconds", r->seconds);
}

/* --sign or --trusted: nothing else is checked. */
static int work_signature(const struct fm_cli *cli, struct signing *s, struct fm_err *err)
{
    struct fm_sign_report report = {0};
    struct fm_cli_text text;
    if (!cli->operands)
        return fm_fail(err, FM_EUSAGE, "%s needs a DIR or FILE; see fm-verify --help",
                       s->private_key ? "--sign" : "--trusted");
    if (cli->dry_run)
        return dry_run_signature(cli, s, err);
    if (fm_cli_text_open(&text, err))
        return err->code;
    struct signed_files found = {{text.out, cJSON_CreateArray(), NULL}, cJSON_CreateArray()};
    s->options.key = s->private_key ? s->private_key : s->public_key;
    s->options.ignored = add_ignored;
    s->options.finding = add_unsigned;
    s->options.self = &found;
    int rc = s->private_key ? fm_sign(&cli->run, &s->options, &report, err)
                            : fm_sign_verify(&cli->run, &s->options, &report, err);
    if (rc && report.failed == 0) { /* nothing was compared, so this is an error and not a result */
        cJSON_Delete(found.findings.list);
        cJSON_Delete(found.ignored);
        fm_cli_text_drop(&text);
        free(report.signature);
        free(report.signed_as);
        return rc;
    }
    const struct fm_result result = {text.out, fm_result_begin("fm-verify")};
    describe_signature(&result, &found, &report, s->private_key != NULL, rc);
    rc = print_checked(cli, &text, result.json, err);
    free(report.signature);
    free(report.signed_as);
    return rc;
}

static int check_signing(const struct fm_cli *cli, const struct signing *s, struct fm_err *err)
{
    if (s->private_key && s->public_key)
        return fm_fail(err, FM_EUSAGE,
                       "--sign makes a signature and --trusted verifies one; give "
                       "one of them");
    if (s->private_key)
        return fm_options_check(cli, SIGN, "with --sign", err);
    return fm_options_check(cli, TRUST, "with --trusted", err);
}

/* ---- checks ---- */

static int check_function(const struct fm_cli *cli, const struct fm_verify_options *options,
                          struct fm_err *err)
{
    if (!options->function)
        return fm_options_check(cli, FILES, "without --function", err);
    if (!fm_inputs_first(&cli->run.inputs))
        return fm_fail(err, FM_EUSAGE,
                       "--function needs --text FILE or --tokens FILE; see fm-verify --help");
    int rc = fm_options_check(cli, FUNCTION | BESIDE, "with --function", err);
    return !rc && options->against ? fm_options_check(cli, BESIDE, "with --against", err) : rc;
}

static int work(const struct fm_cli *cli, struct fm_verify_options *options,
                struct signing *signing, struct fm_err *err)
{
    struct fm_verify_report report = {.index = -1};
    struct fm_cli_text text;
    if (signing->private_key || signing->public_key)
        return check_signing(cli, signing, err) ? err->code : work_signature(cli, signing, err);
    if (check_function(cli, options, err))
        return err->code;
    if (cli->dry_run && fm_verify_plan(&cli->run, options, err))
        return err->code;
    if (cli->dry_run)
        return fm_verify_is_unpaired(options) ? dry_run_table(cli, options, err)
                                              : dry_run(cli, options, err);
    if (fm_cli_text_open(&text, err))
        return err->code;
    struct findings findings = {text.out, cJSON_CreateArray(), NULL};
    options->finding = add_finding;
    options->not_listed = add_not_listed;
    options->self = &findings;
    int rc = fm_verify(&cli->run, options, &report, err);
    /* Stopped before the kind of target was known: an error, not a result.  not_listed
     * is NULL. */
    if (rc && report.items == 0 && report.failed == 0) {
        cJSON_Delete(findings.list);
        fm_cli_text_drop(&text);
        return rc;
    }
    const struct fm_result result = {text.out, fm_result_begin("fm-verify")};
    describe(&result, &report, &findings, rc);
    return print_checked(cli, &text, result.json, err);
}

static bool reads_only(const struct fm_cli *cli)
{
    return !fm_options_given(cli, "function");
}

int fm_verify_main(int argc, char **argv)
{
    struct fm_verify_options options = {.target = "-"};
    struct signing signing = {.options = {.passphrase_fd = -1}};
    const struct fm_cli_option own[] = {
        {"against", 'a', FM_CLI_READ, &options.against, "BUNDLE",
         "the bundle that DIR was exported from; its beginning is enough for most exports", 0, 0,
         FILES | FUNCTION | BESIDE},
        {"function", 0, FM_CLI_FLAG, &options.function, NULL,
         "also run the model on four sequences; needs --text or --tokens, and "
         "--model for a "
         "bundle",
         0, 0, FUNCTION | BESIDE},
        {"sign", 0, FM_CLI_READ, &signing.private_key, "KEY",
         "sign DIR or FILE with this private key (PEM)", 0, 0, SIGN},
        {"passphrase-fd", 0, FM_CLI_INT, &signing.options.passphrase_fd, "N",
         "with --sign: read the key's passphrase from this file descriptor", 0, 1 << 20, SIGN},
        {"trusted", 0, FM_CLI_READ, &signing.public_key, "KEY",
         "verify the signature of DIR or FILE with this key", 0, 0, TRUST},
    };
    struct fm_cli cli = {
        .tool = "fm-verify",
        .synopsis = "[options] [BUNDLE|STAGE]\n"
                    "       fm-verify DIR [--against BUNDLE]\n"
                    "       fm-verify --sign KEY | --trusted KEY DIR|FILE",
        .about = "Check a bundle, a stream or an export; sign, and verify signatures.",
        .often = "against sign trusted function model tokens text threads json quiet help version",
        .groups = FM_CLI_MODEL | FM_CLI_TOKENS | FM_CLI_MACHINE | FM_CLI_OPTIONAL | FM_CLI_CONFINED,
        .confined = reads_only,
        .descriptor = &signing.options.passphrase_fd,
        .operands_max = 1,
        .makes = "sign",
        .scope = scope,
    };
    fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own));
    if (cli.operands)
        options.target = signing.options.target = cli.operand[0];
    struct fm_err err = {0};
    int rc = work(&cli, &options, &signing, &err);
    return fm_cli_end(&cli, rc, &err);
}
