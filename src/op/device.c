/* The devices that plans are made for and run on, from device.def. */
#include "op.h"

#include <string.h>

#define ROW(n, main, host, kernels, align, machine) \
    {DEVICE_##n, #n, {main, host}, kernels, align, machine},
static const Device devices[NDEVICE] = {DEVICES(ROW)};

const Device *device_at(DeviceId id)
{
    return &devices[id];
}

const Device *device_get(Ctx *ctx, const char *name)
{
    const char *names[NDEVICE];
    for (int i = 0; i < NDEVICE; i++) {
        names[i] = devices[i].name;
        if (strcmp(names[i], name ? name : names[0]))
            continue;
        if (!kernels_linked(devices[i].kernels))
            fail(ctx, TN_USAGE,
                 "--backend %s: this program was built without it, as where nvcc is missing", name);
        return &devices[i];
    }
    const char *near = nearest(name, names, NDEVICE);
    fail(ctx, TN_USAGE, "unknown back end \"%s\"%s%s%s", name, near ? "; the nearest is \"" : "",
         near ? near : "", near ? "\"" : "");
}
