/* The functions of CANN that torch-npu needs to start, allocate, copy and capture, over host memory.

   An NPU's memory is host memory here, streams and events are numbers, and every call has finished when it
   returns. build.py makes the other several hundred functions that torch-npu names; those return 0 and do
   nothing. FAKE_SOC chooses the chip, FAKE_NPU_BYTES its memory, FAKE_NPUS how many there are. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NO_MEMORY = 207001 };
static const size_t ALIGNMENT = 512;

static int current_device = 0;
static size_t used_bytes = 0;
static uintptr_t next_handle = 0x2000;

static size_t total_bytes(void) {
    const char *text = getenv("FAKE_NPU_BYTES");
    return text ? strtoull(text, NULL, 10) : (size_t)4 << 30;
}

static void *new_handle(void) { return (void *)(next_handle += 16); }

/* ---- device ---- */

int aclrtGetDeviceCount(uint32_t *count) {
    const char *text = getenv("FAKE_NPUS");
    *count = text ? (uint32_t)atoi(text) : 2;
    return OK;
}
int aclrtGetDevice(int32_t *device) { *device = current_device; return OK; }
int aclrtSetDevice(int32_t device) { current_device = device; return OK; }
int aclrtGetCurrentContext(void **context) { *context = (void *)0x1000; return OK; }
const char *aclrtGetSocName(void) {
    const char *name = getenv("FAKE_SOC");
    return name ? name : "Ascend910B1";
}
size_t aclGetCompileoptSize(int option) { (void)option; return 64; }
int aclGetCompileopt(int option, char *value, size_t length) {
    (void)option;
    if (value && length) { memset(value, 0, length); strncpy(value, "disable", length - 1); }
    return OK;
}

/* ---- memory: the size stands before the block, so that free() can count ---- */

int aclrtMalloc(void **block, size_t size, int policy) {
    char *base = NULL;
    (void)policy;
    if (used_bytes + size > total_bytes()) return NO_MEMORY;
    if (posix_memalign((void **)&base, ALIGNMENT, size + ALIGNMENT)) return NO_MEMORY;
    *(size_t *)base = size;
    used_bytes += size;
    *block = base + ALIGNMENT;
    return OK;
}
int aclrtMallocAlign32(void **block, size_t size, int policy) { return aclrtMalloc(block, size, policy); }
int aclrtFree(void *block) {
    if (!block) return OK;
    char *base = (char *)block - ALIGNMENT;
    used_bytes -= *(size_t *)base;
    free(base);
    return OK;
}
int aclrtMallocHost(void **block, size_t size) {
    return posix_memalign(block, ALIGNMENT, size ? size : 1) ? NO_MEMORY : OK;
}
int aclrtFreeHost(void *block) { free(block); return OK; }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) {
    (void)room; (void)kind;
    memmove(to, from, size);
    return OK;
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream) {
    (void)stream;
    return aclrtMemcpy(to, room, from, size, kind);
}
int aclrtMemset(void *block, size_t room, int value, size_t size) {
    (void)room;
    memset(block, value, size);
    return OK;
}
int aclrtGetMemInfo(int attribute, size_t *free_bytes, size_t *total) {
    (void)attribute;
    *total = total_bytes();
    *free_bytes = *total - used_bytes;
    return OK;
}

/* ---- streams and events ---- */

int aclrtCreateStream(void **stream) { *stream = new_handle(); return OK; }
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag) {
    (void)priority; (void)flag;
    return aclrtCreateStream(stream);
}
int aclrtCreateEventExWithFlag(void **event, uint32_t flag) {
    (void)flag;
    *event = new_handle();
    return OK;
}
int aclrtEventElapsedTime(float *ms, void *start, void *end) {
    (void)start; (void)end;
    *ms = 1.0f;
    return OK;
}

/* ---- graphs: the recording and replaying of operations is Python's (graphs.py) ---- */

static int is_capturing = 0;
static void *current_graph = NULL;

int aclmdlRICaptureBegin(void *stream, int mode) {
    (void)stream; (void)mode;
    is_capturing = 1;
    current_graph = new_handle();
    return OK;
}
int aclmdlRICaptureGetInfo(void *stream, int *status, void **graph) {
    (void)stream;
    *status = is_capturing;
    if (graph) *graph = is_capturing ? current_graph : NULL;
    return OK;
}
int aclmdlRICaptureEnd(void *stream, void **graph) {
    (void)stream;
    is_capturing = 0;
    *graph = current_graph;
    return OK;
}
int aclmdlRICaptureThreadExchangeMode(int *mode) { (void)mode; return OK; }
int aclmdlRIExecuteAsync(void *graph, void *stream) { (void)graph; (void)stream; return OK; }
