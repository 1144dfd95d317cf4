/*
 * Every tool on a small family while the N-th read, write, fsync, rename, allocation ... fails:
 * one sentence and a status that fits, no crash, nothing under the output's name but the whole
 * output, no temporary left behind.  Interrupted and short calls change nothing.
 *
 * A selection of N keeps this within seconds; FM_FAULTS=all tries every one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/err.h"

#define SECONDS_MAX "60"
#define ARGS_MAX 24
#define LAST 64 /* calls, in which a report is built and printed */

static char bin[4096], golden[4096], work[4096];
static int violations;
static long runs;

struct course {
    const char *title, *tool;
    const char *args[ARGS_MAX];
    const char *input; /* standard input; NULL: /dev/null */
    bool makes;        /* `out` */
};

#define DATA "--model", "@odd-mixtral", "--tokens", "@odd-mixtral/tokens.npy", "-T", "1", "-q"
/* Without oneDNN, which generates code in every process for longer than the tool then runs; but
 * courses with DATA do use it. */
#define ON DATA, "--device", "ref"

static const struct course setup[] = {
    {"rank", "fm-rank", {ON, "-o", "ranked"}, NULL, false},
    {"train",
     "fm-train",
     {ON, "--method", "saliency", "--budget-step", "0.2", "-o", "trained", "ranked"},
     NULL,
     false},
    {"recover", "fm-recover", {ON, "--steps", "1", "-o", "recovered", "trained"}, NULL, false},
    {"pack",
     "fm-pack",
     {"--model", "@odd-mixtral", "-q", "-o", "family.fm", "recovered"},
     NULL,
     false},
    {"export",
     "fm-pack",
     {"-q", "--export", "out40", "--budget", "0.4", "--layout", "ragged", "family.fm"},
     NULL,
     false},
};

static const struct course courses[] = {
    {"list as JSON", "fm-pack", {"--list", "--json", "ranked"}, NULL, false},
    {"rank", "fm-rank", {DATA, "--state", "state", "-o", "out"}, NULL, true},
    {"train",
     "fm-train",
     {DATA, "--method", "learned", "--steps", "2", "--until", "0.2", "--budget-step", "0.1",
      "--memory", "1K", "--state", "state", "-o", "out"},
     "ranked",
     true},
    {"recover",
     "fm-recover",
     {ON, "--steps", "1", "--memory", "1K", "-o", "out", "trained"},
     NULL,
     true},
    {"pack",
     "fm-pack",
     {"--model", "@odd-mixtral", "-T", "1", "-q", "-o", "out"},
     "recovered",
     true},
    {"pack to a pipe",
     "fm-pack",
     {"--model", "@odd-mixtral", "-T", "1", "-q", "trained"},
     NULL,
     false},
    {"list", "fm-pack", {"--list", "family.fm"}, NULL, false},
    {"export ragged",
     "fm-pack",
     {"-T", "1", "-q", "--export", "out", "--budget", "0.4", "--layout", "ragged", "family.fm"},
     NULL,
     true},
    {"export native",
     "fm-pack",
     {"-T", "1", "-q", "--export", "out", "--budget", "0.4", "--layout", "native", "family.fm"},
     NULL,
     true},
    {"verify a bundle", "fm-verify", {"-T", "1", "-q", "family.fm"}, NULL, false},
    {"verify a pipe", "fm-verify", {"-T", "1", "-q", "-"}, "| family.fm", false},
    {"verify an export",
     "fm-verify",
     {"-T", "1", "-q", "out40", "--against", "family.fm"},
     NULL,
     false},
    {"sign",
     "fm-verify",
     {"-T", "1", "-q", "--force", "--sign", "key.pem", "family.fm"},
     NULL,
     false},
    {"bill of materials",
     "fm-pack",
     {"-T", "1", "-q", "--force", "--bom", "--from", "family.fm", "out40"},
     NULL,
     false},
    {"verify a signature",
     "fm-verify",
     {"-T", "1", "-q", "--trusted", "key.pub", "family.fm"},
     NULL,
     false},
    {"bench",
     "fm-bench",
     {"quality", "--tokens", "@odd-mixtral/tokens.npy", "-T", "1", "-q", "--plot", "out",
      "--device", "ref", "--budgets", "0.4", "family.fm"},
     NULL,
     true},
};

static const char *place(char *to, size_t size, const char *arg)
{
    if (*arg != '@')
        return arg;
    snprintf(to, size, "%s/%s", golden, arg + 1);
    return to;
}

static void child(const struct course *c, const char *fault)
{
    char *argv[ARGS_MAX + 2], path[ARGS_MAX][4200], tool[4200], preload[4200];
    int n = 0;
    const char *input = c->input ? c->input : "/dev/null";
    argv[n++] = (char *)c->tool;
    for (int i = 0; i < ARGS_MAX && c->args[i]; i++)
        argv[n++] = (char *)place(path[i], sizeof path[i], c->args[i]);
    argv[n] = NULL;
    int out = open("stdout", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err = open("stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int in = open(*input == '|' ? input + 2 : input, O_RDONLY);
    if (*input == '|') { /* all of a small file fits into the pipe */
        static char bytes[1 << 20];
        int end[2];
        ssize_t got = read(in, bytes, sizeof bytes);
        if (pipe(end) != 0 || fcntl(end[1], F_SETPIPE_SZ, 1 << 20) < 0 ||
            write(end[1], bytes, (size_t)got) != got)
            _exit(99);
        close(end[1]);
        in = end[0];
    }
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    snprintf(tool, sizeof tool, "%s/bin/%s", bin, c->tool);
    snprintf(preload, sizeof preload, "%s/tests/unit/faults.so", bin);
    setenv("LD_PRELOAD", preload, 1);
    setenv("FM_FAULT_TOLD", "told", 1);
    setenv("TMPDIR", work, 1);
    if (fault)
        setenv("FM_FAULT", fault, 1);
    alarm(atoi(SECONDS_MAX));
    execv(tool, argv);
    _exit(98);
}

/* Its status, or 1000 + the signal that ended it. */
static int run(const struct course *c, const char *fault)
{
    int status = 0;
    unlink("told");
    pid_t pid = fork();
    if (pid == 0)
        child(c, fault);
    runs++;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 999;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* A file as a string of `most` bytes; "" where it is not there. */
static char *slurp(const char *path, size_t most)
{
    char *text = calloc(most, 1);
    FILE *f = fopen(path, "r");
    if (f && text) {
        size_t n = fread(text, 1, most - 1, f);
        text[n] = '\0';
    }
    if (f)
        fclose(f);
    return text;
}

static int shell(const char *command)
{
    int rc = system(command);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : 999;
}

static void complain(const struct course *c, const char *fault, int status, const char *what)
{
    char *text = slurp("stderr", 4096);
    printf("%s, %s: status %d: %s: %s\n", c->title, fault, status, what, text);
    violations++;
    free(text);
}

/* The statuses that a fault of the machine may have (lib/base/err.h). */
static bool is_fitting(int status)
{
    static const int fitting[] = {FM_ENOENT, FM_ENOMEM, FM_ECREATE, FM_EIO, FM_EPERM};
    for (size_t i = 0; i < sizeof fitting / sizeof fitting[0]; i++)
        if (status == fitting[i])
            return true;
    return false;
}

/* What a tool has in its folder: temporaries, and what `check` removes. */
static void look_around(bool *temporary, bool *removed)
{
    DIR *folder = opendir(".");
    *temporary = *removed = false;
    for (struct dirent *d; folder && (d = readdir(folder));) {
        const char *name = d->d_name;
        bool hidden = *name == '.' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
        *temporary |= hidden || strncmp(name, "fm-", 3) == 0;
        *removed |= strcmp(name, "out") == 0 || strcmp(name, "state") == 0;
    }
    if (folder)
        closedir(folder);
    *removed |= *temporary;
}

static void check(const struct course *c, const char *fault, int status, bool harmless)
{
    bool there = access(c->makes ? "out" : "stdout", F_OK) == 0, temporary, removed;
    bool asked = there && (status == 0 || c->makes); /* a program costs more than most runs */
    bool same =
        asked && shell(c->makes ? "diff -rq out want >/dev/null 2>&1" : "cmp -s stdout want") == 0;
    char *text = slurp("stderr", 65536);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s: ", c->tool);
    const char *last = strstr(text, prefix);
    /* The one output that may be lost: a plot, beside the figures that the run has printed. */
    bool lost = strcmp(c->tool, "fm-bench") == 0 && !there && strstr(text, "the plot is lost");
    if (status == 0 && !same && !lost)
        complain(c, fault, status, "another result");
    else if (harmless && status != 0)
        complain(c, fault, status, "this should not matter");
    else if (status != 0 && !is_fitting(status))
        complain(c, fault, status, "not a status of such a fault");
    else if (status != 0 && !last)
        complain(c, fault, status, "no sentence");
    if (status != 0 && c->makes && there && !same)
        complain(c, fault, status, "half an output");
    look_around(&temporary, &removed);
    if (temporary)
        complain(c, fault, status, "something is left behind");
    free(text);
    if (removed && shell("rm -rf out state .[!.]* fm-*") != 0)
        complain(c, fault, status, "cannot clean up");
}

/* 1, 2, 3, 4, 6, 9, ... and the last, or every one; every one of the last where a report is all
 * that the tool makes. */
static long next_of(const struct course *c, long n, long last)
{
    const char *all = getenv("FM_FAULTS");
    long next = all && strcmp(all, "all") == 0 ? n + 1 : n + 1 + n / 2;
    bool report = c->args[1] && strcmp(c->args[1], "--json") == 0;
    if (report && next > last - LAST)
        next = n < last - LAST ? last - LAST : n + 1;
    return next > last && n < last ? last : next;
}

/* How many calls there are may hang on the time, where states are saved: it ends where none came.
 */
static void sweep(const struct course *c, const char *call, const char *kind, long last)
{
    bool harmless = *kind == 'i' || *kind == 's';
    for (long n = 1; n <= last; n = next_of(c, n, last)) {
        char fault[64];
        snprintf(fault, sizeof fault, "%s:%ld:%s", call, n, kind);
        int status = run(c, fault);
        char *told = slurp("told", 512);
        bool hit = strncmp(told, "hit", 3) == 0 || status >= 1000 || status == FM_ENOMEM;
        free(told);
        if (!hit && n == 1)
            complain(c, fault, status, "never came");
        check(c, fault, status, harmless);
        if (!hit)
            break;
    }
}

static void try_course(const struct course *c)
{
    int status = run(c, NULL);
    char *told = slurp("told", 512), *rest = told, *line;
    if (status != 0 || shell(c->makes ? "rm -rf want; mv out want" : "mv stdout want") != 0)
        complain(c, "no fault", status, "does not even run");
    while ((line = strsep(&rest, "\n")) && *line) {
        char call[16];
        long n = 0;
        sscanf(line, "%15s %ld", call, &n);
        bool io = strstr("read pread write pwrite", call) != NULL;
        /* Where the CUDA runtime is linked into fm-bench, its own lack of memory ends it. */
        if (strcmp(c->tool, "fm-bench") == 0 && strcmp(call, "malloc") == 0)
            continue;
        if (n > 0)
            sweep(c, call, "fail", n);
        if (n > 0 && io) {
            sweep(c, call, "interrupt", n < 4 ? n : 4);
            sweep(c, call, "short", n < 4 ? n : 4);
        }
        if (n > 0 && strcmp(call, "statvfs") == 0) {
            char fault[] = "statvfs:1:full";
            status = run(c, fault);
            if (status != FM_ECREATE && status != FM_EIO)
                complain(c, fault, status, "a full disk is not seen at once");
            check(c, fault, status, false);
        }
    }
    free(told);
    shell("rm -rf want");
}

int main(int argc, char **argv)
{
    (void)argc;
    char *slash = strrchr(argv[0], '/');
    snprintf(work, sizeof work, "%s/fm-faults-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    *slash = '\0';
    char up[4096];
    snprintf(up, sizeof up, "%s/../..", argv[0]);
    if (!realpath(up, bin) || !realpath("golden", golden) || !mkdtemp(work) || chdir(work) != 0) {
        perror("test_faults");
        return 1;
    }
    int rc = 0;
#if defined(__SANITIZE_ADDRESS__)
    printf("not under AddressSanitizer, which must be loaded first\n");
    rc = 77;
#endif
    for (size_t i = 0; rc == 0 && i < sizeof setup / sizeof *setup; i++)
        if ((rc = run(&setup[i], NULL)) != 0)
            complain(&setup[i], "no fault", rc, "does not even run");
    if (rc == 0 &&
        (rc = shell("openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 "
                    "-out key.pem 2>&1 && openssl pkey -in key.pem -pubout -out key.pub")))
        printf("openssl makes no keys\n");
    for (size_t i = 0; rc == 0 && i < sizeof courses / sizeof *courses; i++)
        try_course(&courses[i]);
    if (rc == 0)
        printf("%ld runs, %d violations\n", runs, violations);
    char away[4200];
    snprintf(away, sizeof away, "rm -rf '%s'", work);
    if (chdir("/") != 0 || shell(away) != 0)
        rc = rc ? rc : 1;
    return rc ? rc : violations > 0;
}
