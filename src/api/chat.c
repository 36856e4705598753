/* Chat templates of folders. */
#include "api.h"

#include "../io/record.h"

#include <jansson.h>
#include <string.h>

struct tn_chat {
    Handle h;
    Chat *chat;
    Arena *last; /* what the last text lies in */
};

static tn_chat *open_chat(tn_context *ctx, Arena *call, const char *path)
{
    tn_chat *c = handle_new(ctx, call, sizeof *c);
    c->chat = chat_open(c->h.a, path);
    c->last = arena_tmp(c->h.a);
    if (!c->chat)
        fail(&ctx->ctx, TN_FAIL,
             "%s: expected a chat template, found no chat_template.jinja, and no chat_template in "
             "tokenizer_config.json",
             path);
    return c;
}

int tn_chat_open(tn_context *ctx, const char *path, tn_chat **chat)
{
    if (!GIVEN(ctx, ctx, path, chat))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        *chat = handle_keep(open_chat(ctx, try_arena(&t), path));
    return tried(&t);
}

static JinjaText render(tn_chat *c, const char *json, size_t nbytes, bool prompt)
{
    Arena *a = c->last;
    arena_reset(a);
    RecordReader *r = records_of_text(a, "chat", json, nbytes);
    json_t *record = records_next(r);
    if (!record)
        records_fail(r, "expected a chat, found nothing");
    Document d = document_read(r, record);
    if (d.kind != DOCUMENT_CHAT)
        records_fail(r, "expected a chat, found a text");
    return prompt ? chat_prompt(c->chat, a, &d) : chat_render(c->chat, a, &d);
}

int tn_chat_text(tn_chat *chat, const char *json, size_t nbytes, int prompt, const char **text,
                 size_t *size, const tn_span **span, int *nspan)
{
    if (!GIVEN(args_owner(chat), chat, json, text, size, span, nspan) ||
        !WITHIN(args_owner(chat), 0, 1, prompt))
        return TN_CODE_USAGE;
    *text = NULL;
    *size = 0;
    *span = NULL;
    *nspan = 0;
    TRY(t, &chat->h.owner->ctx) {
        JinjaText made = render(chat, json, nbytes, prompt);
        tn_span *all = NEWN(chat->last, tn_span, made.nspan + 1);
        for (int i = 0; i < made.nspan; i++)
            all[i] = (tn_span){made.span[i].begin, made.span[i].end};
        *text = made.text;
        *size = made.n;
        *span = all;
        *nspan = made.nspan;
    }
    return tried(&t);
}

void tn_chat_free(tn_chat *chat)
{
    handle_free((Handle *)chat);
}
