/* parse: what parse.c and parse_region.c share. */
#ifndef TENON_PARSE_H
#define TENON_PARSE_H

#include "ir.h"

/* name=value, as a node's text gives them. */
typedef struct AttrList {
    AttrArg arg[TN_MAX_ATTR + 1]; /* ends with a zero element */
    int count;
} AttrList;

/* The text before "=": names, and types where given. */
typedef struct ResultName {
    Token t;
    bool typed;
    Token type_token;
    Type type;
} ResultName;

typedef struct Results {
    ResultName *r;
    const char **name;
    int count;
} Results;

/* The fields after ")". */
typedef struct Fields {
    unsigned given; /* bits of parse.c */
    Phase phase;
    Policy policy;
    const char *scope, *origin;
    int64_t stream;
    Node **after;
    int nafter;
} Fields;

typedef struct Operands {
    Value **v;
    int count, cap;
} Operands;

/* A node's text before the node is made. */
typedef struct Head {
    Token t, at_op;
    Results results;
    const Op *op;
    Operands in;
    AttrList attrs;
    Fields fields;
} Head;

/* ---- parse.c ---- */

/* Fails where the name is one of g's already. */
void need_new_name(Lexer *x, const Graph *g, const Token *t);
Value *parse_operand(Lexer *x, Graph *g);
void parse_operand_into(Lexer *x, Graph *g, Operands *in);
bool attr_known(const Op *op, const char *name);
void parse_attr(Lexer *x, const Op *op, AttrList *l);
Fields parse_fields(Lexer *x, Graph *g);
void parse_nodes(Lexer *x, Graph *g); /* as many as there are, before yield or return */

/* ---- parse_region.c ---- */

/* Parses the text after the op of a region node; fills the head's operands, attributes and fields.
 */
Region *parse_region(Lexer *x, Graph *g, Head *h);

#endif
