/* What a graph's allocation nodes take: the pages of their addresses, each once. The driver gives addresses when nodes
 * are made, and gives one again to a node that is ordered behind the freeing of the one before (CUDA programming guide,
 * Graph Memory Nodes), so that their union is what the graph can ever have mapped at once. */
#ifndef STRATA_QUOTA_GRAPH_FOOTPRINT_H
#define STRATA_QUOTA_GRAPH_FOOTPRINT_H

#include "quota.h"

struct footprint;

/* Add an allocation's addresses; NULL is an empty footprint, and is left where there is no memory for another range. */
struct footprint *footprint_add(struct footprint *footprint, uint64_t address, uint64_t bytes);
uint64_t footprint_bytes(const struct footprint *footprint);
void footprint_end(struct footprint *footprint);

#endif
