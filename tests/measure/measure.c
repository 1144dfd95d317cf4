/* The command line of measure-engine. */
#include "tests/measure/measure.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/pool.h"

static atomic_int stop;
static const char *tool;

static void ask_to_stop(int signal)
{
    (void)signal;
    stop = 1;
}

static void refuse(const char *text)
{
    fprintf(stderr, "%s: %s\n", tool, text);
    exit(FM_EUSAGE);
}

/* A whole number from 0 to a million. */
static int number(const char *text)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < 0 || v > 1000000)
        refuse("a number must be from 0 to 1000000");
    return (int)v;
}

void measure_begin(struct measure_options *o, struct fm_run_options *run, int argc, char **argv)
{
    const struct {
        const char *name, **text;
        int *number;
    } option[] = {{"shape", &o->shape, NULL},         {"dtype", &o->dtype, NULL},
                  {"precision", &o->precision, NULL}, {"dir", &o->dir, NULL},
                  {"layers", NULL, &o->layers},       {"sequences", NULL, &o->sequences},
                  {"steps", NULL, &o->steps},         {"recover", NULL, &o->recover},
                  {"batch", NULL, &o->batch},         {"memory", NULL, &o->memory},
                  {"threads", NULL, &o->threads},     {"keep", NULL, NULL}};
    enum { OPTIONS = sizeof option / sizeof *option };
    struct option longs[OPTIONS + 1] = {{0}};
    int at = 0;
    tool = argv[0];
    for (int i = 0; i < OPTIONS; i++) {
        bool flag = !option[i].text && !option[i].number;
        longs[i] = (struct option){option[i].name, flag ? no_argument : required_argument, NULL, 1};
    }
    for (int c; (c = getopt_long(argc, argv, "", longs, &at)) != -1;) {
        if (c != 1)
            exit(FM_EUSAGE);
        if (option[at].text)
            *option[at].text = optarg;
        else if (option[at].number)
            *option[at].number = number(optarg);
        else
            o->keep = true;
    }
    if (optind < argc)
        refuse("there are no operands");
    *run = (struct fm_run_options){.outputs.path = "-", .stop = &stop};
    run->machine.memory = (uint64_t)o->memory * 1000000;
    run->machine.precision =
        o->precision && strcmp(o->precision, "bf16") == 0 ? FM_PRECISION_BF16 : FM_PRECISION_F32;
    run->machine.threads = o->threads;
    run->inputs.batch = o->batch;
    sigaction(SIGINT, &(struct sigaction){.sa_handler = ask_to_stop}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = ask_to_stop}, NULL);
    struct fm_err err = {0};
    if (fm_pool_start(o->threads, &err))
        refuse(err.text);
}

int measure_end(const struct fm_err *err)
{
    fm_pool_stop();
    if (err->code)
        fprintf(stderr, "%s: %s\n", tool, err->text);
    return err->code;
}
