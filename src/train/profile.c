/* --profile: records the third to the fifth step of a run, as the first two also measure memory and
 * take page faults; of a shorter run the last step. The file is written as soon as they are done,
 * so that it can be read while training goes on. */
#include "trainer.h"

enum { FIRST = 3, COUNT = 3, END = FIRST + COUNT };

int profile_start(Trainer *r)
{
    r->ran = r->t->profile ? 0 : END;
    int code = r->t->profile ? tn_program_trace(r->step, COUNT) : 0;
    if (!code && r->t->profile) /* without events yet: where it cannot be written, nothing is run */
        code = tn_program_trace_write(r->step, r->t->profile);
    return code;
}

void profile_before(Trainer *r, int64_t step)
{
    if (r->ran == END)
        return;
    int64_t all = r->t->steps - step + ++r->ran; /* steps of this run, if it goes to its end */
    if (r->ran >= FIRST || r->ran >= all)
        tn_program_trace_next(r->step, step);
}

int profile_after(Trainer *r, bool last)
{
    if (r->ran == END || (r->ran < END - 1 && !last))
        return 0;
    r->ran = END;
    return tn_program_trace_write(r->step, r->t->profile);
}
