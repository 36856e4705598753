/* parse: tokens, and making nodes, for parse.c and expression.c. */
#ifndef TENON_JINJA_PARSE_H
#define TENON_JINJA_PARSE_H

#include "jinja.h"

typedef struct JinjaParser {
    Arena *a;
    Jinja *t;
    const JinjaToken *k; /* the next one */
    int depth, loops;
} JinjaParser;

/* ---- expression.c ---- */

_Noreturn void parse_expected(const JinjaParser *p, const char *what);
_Noreturn void parse_refuse(const JinjaParser *p, const char *what, const char *name);
bool parse_is_name(const JinjaParser *p, const char *s);
bool parse_take_sign(JinjaParser *p, const char *s); /* whether it is the next, which then goes */
bool parse_take_name(JinjaParser *p, const char *s);
void parse_need_sign(JinjaParser *p, const char *s);
const char *parse_need_name(JinjaParser *p, const char *what);
void parse_deeper(JinjaParser *p); /* the one that calls it takes p->depth back */

JinjaNode *parse_node(JinjaParser *p, JinjaNodeKind kind);
JinjaNode *parse_wrap(JinjaParser *p, JinjaNodeKind kind, JinjaNode *kid, const char *name);
void parse_add_kid(JinjaParser *p, JinjaNode *n, JinjaNode *kid);
void parse_add_word(JinjaParser *p, JinjaNode *n, const char *word);

JinjaNode *parse_expression(JinjaParser *p);
/* Values with commas between them are a tuple. choice: `a if b else c` may be one. */
JinjaNode *parse_values(JinjaParser *p, bool choice);

#endif
