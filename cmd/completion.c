/*
 * Completions are printed by the tool itself, so they always match its options.  Both scripts are
 * self-contained: bash's needs no bash-completion package, and zsh's is one call of _arguments.
 *
 * What may follow an option depends on its kind and on the word that --help prints for its value.
 * A free value (a number, a pattern) is not completed, not even with file names.  If the first
 * operand selects a mode, options that have no effect in it are not offered after it.
 */
#include "cmd/completion.h"

#include <string.h>

enum follows { NOTHING, ANYTHING, WORDS, FILES, DIRECTORIES, PROGRAMS };

/* The kind of word that can follow an option. */
static enum follows follows(const struct fm_cli_option *o)
{
    switch (o->kind) {
    case FM_CLI_FLAG:
    case FM_CLI_HELP:
        return NOTHING;
    case FM_CLI_CHOICE:
        return WORDS;
    case FM_CLI_EXPORT:
        return DIRECTORIES;
    case FM_CLI_SOURCES:
    case FM_CLI_RESULT:
    case FM_CLI_PLOT:
    case FM_CLI_JOURNAL:
        return FILES;
    case FM_CLI_READ:
        return strcmp(o->arg, "DIR") == 0 ? DIRECTORIES : FILES;
    default:
        return strcmp(o->arg, "DIR") == 0       ? DIRECTORIES
               : strcmp(o->arg, "PROGRAM") == 0 ? PROGRAMS
                                                : ANYTHING;
    }
}

static bool offered(const struct fm_completion_row *row, int mode)
{
    return !mode || !row->modes || row->modes & mode;
}

/* Print the words of "a|b|c", separated by spaces. */
static void print_words(FILE *out, const char *list)
{
    for (; *list; list++)
        fputc(*list == '|' ? ' ' : *list, out);
}

/* The name of the shell function: "_fm_rank" for fm-rank. */
static void print_function(FILE *out, const char *tool)
{
    fputc('_', out);
    for (; *tool; tool++)
        fputc(*tool == '-' ? '_' : *tool, out);
}

/* Print the possible first operands, separated by `between`. */
static void print_first(FILE *out, const struct fm_completion *c, const char *between)
{
    for (const struct fm_cli_first *f = c->first; f->name; f++)
        fprintf(out, "%s%s", f == c->first ? "" : between, f->name);
}

/* --- bash --- */

/* Print the options whose values are completed in this way, as one pattern of a `case`; false if
 * no option is. */
static bool bash_pattern(FILE *out, const struct fm_completion_row *row, int rows,
                         enum follows what)
{
    bool any = false;
    for (int i = 0; i < rows; i++) {
        const struct fm_cli_option *o = row[i].option;
        if (follows(o) != what)
            continue;
        fprintf(out, "%s--%s", any ? " | " : "    ", o->name);
        if (o->letter)
            fprintf(out, " | -%c", o->letter);
        any = true;
    }
    return any;
}

/* Print the `case` that completes the value of the option before the cursor. */
static void bash_values(FILE *out, const struct fm_completion *c)
{
    static const char *const does[] = {
        [ANYTHING] = "return",
        [FILES] = "compopt -o default && return",
        [DIRECTORIES] = "compopt -o dirnames && return",
        [PROGRAMS] = "mapfile -t COMPREPLY < <(compgen -c -- \"$cur\") && return",
    };
    fprintf(out, "    case $prev in\n");
    for (enum follows what = ANYTHING; what <= PROGRAMS; what++)
        if (what != WORDS && bash_pattern(out, c->row, c->rows, what))
            fprintf(out, ") %s ;;\n", does[what]);
    for (int i = 0; i < c->rows; i++)
        if (follows(c->row[i].option) == WORDS) {
            bash_pattern(out, &c->row[i], 1, WORDS);
            fprintf(out, ") words='");
            print_words(out, c->row[i].option->arg);
            fprintf(out, "' ;;\n");
        } else if (c->row[i].option->kind == FM_CLI_HELP) {
            fprintf(out, "    --%s) words=all ;;\n", c->row[i].option->name);
        }
    fprintf(out, "    esac\n");
}

static void bash_options(FILE *out, const struct fm_completion *c, int mode)
{
    fprintf(out, "options='");
    for (int i = 0; i < c->rows; i++)
        if (offered(&c->row[i], mode))
            fprintf(out, "--%s %s", c->row[i].option->name,
                    c->row[i].option->kind == FM_CLI_HELP ? "--help=all " : "");
    fprintf(out, "'");
}

/* Print the `case` that sets the options of the mode that the first operand selects. */
static void bash_first(FILE *out, const struct fm_completion *c)
{
    fprintf(out, "    local word what=''\n"
                 "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
                 "        case $word in ");
    print_first(out, c, " | ");
    fprintf(out, ") what=$word && break ;; esac\n"
                 "    done\n"
                 "    case $what in\n");
    for (const struct fm_cli_first *f = c->first; f->name; f++) {
        fprintf(out, "    %s) ", f->name);
        bash_options(out, c, f->mode);
        fprintf(out, " ;;\n");
    }
    fprintf(out, "    esac\n");
}

static void print_bash(FILE *out, const struct fm_completion *c)
{
    fprintf(out, "# bash completion of %s, printed by %s --completion=bash\n", c->tool, c->tool);
    print_function(out, c->tool);
    fprintf(out, "()\n{\n"
                 "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                 "    local words='' ");
    bash_options(out, c, 0);
    fprintf(out, "\n    COMPREPLY=()\n"
                 "    # readline makes three words of --option=value\n"
                 "    if [[ $cur == = ]]; then\n"
                 "        cur=\n"
                 "    elif [[ $prev == = ]]; then\n"
                 "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
                 "    fi\n");
    bash_values(out, c);
    if (c->first)
        bash_first(out, c);
    fprintf(out, "    if [[ -z $words ]]; then\n"
                 "        words=$options\n");
    if (c->first) {
        fprintf(out, "        [[ $cur == -* || -n $what ]] || words='");
        print_first(out, c, " ");
        fprintf(out, "'\n");
    }
    if (c->files)
        fprintf(out,
                "        if [[ $cur != -*%s ]]; then\n"
                "            compopt -o default && return\n"
                "        fi\n",
                c->first ? " && -n $what" : "");
    fprintf(out, "    fi\n"
                 "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                 "}\n"
                 "complete -F ");
    print_function(out, c->tool);
    fprintf(out, " %s\n", c->tool);
}

/* --- zsh --- */

/* Print text inside '...[here]': escape the characters that _arguments and the quotes interpret. */
static void zsh_text(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fprintf(out, "%s%c", strchr("[]\\", *text) ? "\\" : "", *text);
}

/* One spec: '(-o --output)'{-o+,--output=}'[where the result goes]:FILE:_files' */
static void zsh_option(FILE *out, const struct fm_cli_option *o)
{
    static const char *const does[] = {
        [FILES] = "_files", [DIRECTORIES] = "_files -/", [PROGRAMS] = "_command_names -e"};
    enum follows what = follows(o);
    bool again = o->kind == FM_CLI_LIST || o->kind == FM_CLI_SOURCES || o->kind == FM_CLI_READS;
    const char *value = what == NOTHING ? "" : "=";
    fprintf(out, "        ");
    if (o->kind == FM_CLI_HELP)
        fprintf(out, "-%c '--%s=-", o->letter, o->name);
    else if (o->letter && again)
        fprintf(out, "'*'{-%c%s,--%s%s}'", o->letter, *value ? "+" : "", o->name, value);
    else if (o->letter)
        fprintf(out, "'(-%c --%s)'{-%c%s,--%s%s}'", o->letter, o->name, o->letter,
                *value ? "+" : "", o->name, value);
    else
        fprintf(out, "'%s--%s%s", again ? "*" : "", o->name, value);
    fputc('[', out);
    zsh_text(out, o->help);
    fputc(']', out);
    if (o->kind == FM_CLI_HELP)
        fprintf(out, "::how much:(all)");
    if (what == WORDS) {
        fprintf(out, ":%s:(", o->name);
        print_words(out, o->arg);
        fputc(')', out);
    } else if (what != NOTHING) {
        fputc(':', out);
        for (const char *c = o->arg; *c; c++)
            fprintf(out, "%s%c", *c == ':' ? "\\" : "", *c);
        fprintf(out, ":%s", what == ANYTHING ? " " : does[what]);
    }
    fprintf(out, "'\n");
}

static void zsh_options(FILE *out, const struct fm_completion *c, int mode)
{
    fprintf(out, "specs=(\n");
    for (int i = 0; i < c->rows; i++)
        if (offered(&c->row[i], mode))
            zsh_option(out, c->row[i].option);
    fprintf(out, "    )");
}

static void print_zsh(FILE *out, const struct fm_completion *c)
{
    fprintf(out,
            "#compdef %s\n# zsh completion of %s, printed by %s --completion=zsh\n"
            "local -a specs\n",
            c->tool, c->tool, c->tool);
    if (c->first) {
        fprintf(out, "case ${words[(r)(");
        print_first(out, c, "|");
        fprintf(out, ")]} in\n");
        for (const struct fm_cli_first *f = c->first; f->name; f++) {
            fprintf(out, "%s) ", f->name);
            zsh_options(out, c, f->mode);
            fprintf(out, " ;;\n");
        }
        fprintf(out, "*) ");
    }
    zsh_options(out, c, 0);
    fprintf(out, "%s\n_arguments -s -S : $specs", c->first ? " ;;\nesac" : "");
    if (c->first) {
        fprintf(out, " '1:what to do:(");
        print_first(out, c, " ");
        fprintf(out, ")'");
    }
    if (c->files)
        fprintf(out, " '*:file:_files'");
    fputc('\n', out);
}

bool fm_completion_print(FILE *out, const char *shell, const struct fm_completion *c)
{
    if (strcmp(shell, "bash") == 0)
        print_bash(out, c);
    else if (strcmp(shell, "zsh") == 0)
        print_zsh(out, c);
    else
        return false;
    return true;
}
