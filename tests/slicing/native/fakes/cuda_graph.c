#include "cuda.h"

#include <stdlib.h>

/* Memory of graphs, as the CUDA programming guide has it (Graph Memory Nodes): addresses are given when nodes are made,
 * and again to later nodes where a node before frees them (here a graph is one chain, in the order of making). Physical
 * memory is mapped at launch, shared by graphs that do not run at once, and kept until it is trimmed; what a graph
 * leaves unfreed is not shared. RESERVED is what the driver has for graphs, USED what any graph has mapped. */
#define PAGE (2ll << 20)

struct Node {
    CUdeviceptr address;
    int64_t bytes;
    int device, is_freed_inside;
    struct Node *next;
};
struct Range {
    CUdeviceptr address;
    int64_t bytes;
    struct Range *next;
};
struct Graph {
    struct Node *nodes;
    struct Range *unused; /* addresses of nodes that are freed inside */
    int64_t footprint;
};

static int64_t reserved[MAX_DEVICES], live[MAX_DEVICES];
static CUdeviceptr next_page = 0x600000000000;

static int64_t pages(int64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static CUdeviceptr take_range(struct Graph *graph, int64_t bytes)
{
    for (struct Range **link = &graph->unused; *link; link = &(*link)->next) {
        struct Range *range = *link;
        if (range->bytes < bytes)
            continue;
        CUdeviceptr address = range->address;
        range->address += (CUdeviceptr)bytes;
        range->bytes -= bytes;
        if (!range->bytes) {
            *link = range->next;
            free(range);
        }
        return address;
    }
    graph->footprint += bytes;
    next_page += (CUdeviceptr)bytes;
    return next_page - (CUdeviceptr)bytes;
}

static CUresult add_alloc(void **node, struct Graph *graph, struct AllocNode *params)
{
    if (params->pool.location.type != LOCATION_DEVICE || params->bytes == 0)
        return INVALID_VALUE;
    struct Node *made = calloc(1, sizeof *made);
    lock();
    CUdeviceptr address = take_range(graph, pages((int64_t)params->bytes));
    *made = (struct Node){address, (int64_t)params->bytes, params->pool.location.id, 0, graph->nodes};
    graph->nodes = made;
    unlock();
    params->address = made->address;
    *node = made;
    return OK;
}

static CUresult add_free(void **node, struct Graph *graph, CUdeviceptr address)
{
    for (struct Node *each_node = graph->nodes; each_node; each_node = each_node->next)
        if (each_node->address == address && !each_node->is_freed_inside) {
            struct Range *range = malloc(sizeof *range);
            *range = (struct Range){address, pages(each_node->bytes), graph->unused};
            graph->unused = range;
            each_node->is_freed_inside = 1;
            *node = each_node;
            return OK;
        }
    return INVALID_VALUE;
}

EXPORT CUresult cuGraphCreate(struct Graph **graph, unsigned flags)
{
    (void)flags;
    ENTER(visit);
    *graph = calloc(1, sizeof **graph);
    return OK;
}

EXPORT CUresult cuGraphDestroy(struct Graph *graph)
{
    (void)graph; /* its executable may outlive it: left to the process's end */
    ENTER(visit);
    return OK;
}

EXPORT CUresult cuGraphAddMemAllocNode(void **node, struct Graph *graph, const void *after, size_t count,
                                       struct AllocNode *params)
{
    (void)after, (void)count;
    ENTER(visit_slowly);
    return add_alloc(node, graph, params);
}

EXPORT CUresult cuGraphAddMemFreeNode(void **node, struct Graph *graph, const void *after, size_t count,
                                      CUdeviceptr address)
{
    (void)after, (void)count;
    ENTER(visit);
    return add_free(node, graph, address);
}

static CUresult add_node(void **node, struct Graph *graph, struct NodeParams *params)
{
    if (params->type == NODE_MEM_ALLOC)
        return add_alloc(node, graph, &params->alloc);
    if (params->type == NODE_MEM_FREE)
        return add_free(node, graph, params->freed);
    return OK;
}

EXPORT CUresult cuGraphAddNode(void **node, struct Graph *graph, const void *after, size_t count,
                               struct NodeParams *params)
{
    (void)after, (void)count;
    ENTER(visit_slowly);
    return add_node(node, graph, params);
}

EXPORT CUresult cuGraphAddNode_v2(void **node, struct Graph *graph, const void *after, const void *edges, size_t count,
                                  struct NodeParams *params)
{
    (void)after, (void)edges, (void)count;
    ENTER(visit_slowly);
    return add_node(node, graph, params);
}

/* Under capture, allocations become nodes: of one graph here, whatever the stream. */
static struct Graph *captured;

int capture_alloc(CUdeviceptr *address, size_t bytes, int device)
{
    void *node;
    struct AllocNode params = {.pool = {.location = {LOCATION_DEVICE, device}}, .bytes = bytes};
    if (!captured)
        return 0;
    add_alloc(&node, captured, &params);
    *address = params.address;
    return 1;
}

int capture_free(CUdeviceptr address)
{
    void *node;
    return captured && add_free(&node, captured, address) == OK;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    (void)stream, (void)mode;
    ENTER(visit);
    captured = calloc(1, sizeof *captured);
    return OK;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, struct Graph **graph)
{
    (void)stream;
    ENTER(visit);
    *graph = captured;
    captured = NULL;
    return *graph ? OK : INVALID_VALUE;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    (void)stream;
    ENTER(visit);
    *status = captured != NULL;
    return OK;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, struct Graph **graph,
                                          const void ***after, size_t *count)
{
    (void)stream, (void)after, (void)count;
    ENTER(visit);
    *status = captured != NULL;
    if (id)
        *id = 1;
    if (graph)
        *graph = captured;
    return OK;
}

EXPORT CUresult cuGraphInstantiate_v2(struct Graph **exec, struct Graph *graph, void **node, char *log, size_t bytes)
{
    (void)node, (void)log, (void)bytes;
    ENTER(visit);
    *exec = graph;
    return OK;
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(struct Graph **exec, struct Graph *graph, void *params)
{
    (void)params;
    ENTER(visit);
    *exec = graph;
    return OK;
}

EXPORT CUresult cuGraphInstantiateWithFlags(struct Graph **exec, struct Graph *graph, unsigned long long flags)
{
    (void)flags;
    ENTER(visit);
    *exec = graph;
    return OK;
}

EXPORT CUresult cuGraphInstantiateWithParams(struct Graph **exec, struct Graph *graph, void *params)
{
    (void)params;
    ENTER(visit);
    *exec = graph;
    return OK;
}

EXPORT CUresult cuGraphExecDestroy(struct Graph *exec)
{
    (void)exec;
    ENTER(visit);
    return OK;
}

static CUresult launch_graph(struct Graph *graph)
{
    CUresult result = OK;
    int device = graph->nodes ? graph->nodes->device : current();
    lock();
    for (struct Node *node = graph->nodes; node; node = node->next)
        if (find(node->address, GRAPHED))
            result = INVALID_VALUE; /* not freed since the last launch */
    int64_t more = result == OK && device >= 0 ? live[device] + graph->footprint - reserved[device] : 0;
    if (more > 0) {
        if (hold(device, more))
            reserved[device] += more;
        else
            result = OUT_OF_MEMORY;
    }
    for (struct Node *node = graph->nodes; node && result == OK; node = node->next)
        if (!node->is_freed_inside) {
            add(node->address, GRAPHED, device, pages(node->bytes));
            live[device] += pages(node->bytes);
        }
    unlock();
    if (result == OK && current() >= 0)
        launch(current());
    return result;
}

int64_t graphs_return(struct Thing *allocation)
{
    int64_t bytes = allocation->bytes;
    live[allocation->device] -= bytes;
    take(allocation);
    return bytes;
}

EXPORT CUresult cuGraphLaunch(struct Graph *exec, CUstream stream)
{
    (void)stream;
    ENTER(visit);
    return launch_graph(exec);
}

EXPORT CUresult cuGraphLaunch_ptsz(struct Graph *exec, CUstream stream)
{
    (void)stream;
    ENTER(visit);
    return launch_graph(exec);
}

EXPORT CUresult cuGraphUpload(struct Graph *exec, CUstream stream)
{
    (void)exec, (void)stream;
    ENTER(visit);
    return OK;
}

EXPORT CUresult cuGraphUpload_ptsz(struct Graph *exec, CUstream stream)
{
    (void)exec, (void)stream;
    ENTER(visit);
    return OK;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    ENTER(visit);
    lock();
    unhold(device, reserved[device] - live[device]);
    reserved[device] = live[device];
    unlock();
    return OK;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    ENTER(visit);
    (void)attribute; /* every page was mapped by some graph, and stays so */
    lock();
    *(uint64_t *)value = (uint64_t)reserved[device];
    unlock();
    return OK;
}
