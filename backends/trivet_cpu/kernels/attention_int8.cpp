// Attention over caches of eight bits, merged as those of bfloat16. Reference and tests: attention_tile.h.
#include "attention_pieces.h"

namespace trivet {

template void attend_with<CACHE_INT8>(const Cache&, int, const int32_t*, const Queries&, Pieces, float*, size_t,
                               AttentionScratch&);

}  // namespace trivet
