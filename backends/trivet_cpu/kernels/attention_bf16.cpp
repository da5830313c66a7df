// Attention over caches of bfloat16. Reference and tests: attention_tile.h.
#include "attention_pieces.h"

namespace trivet {

template void attend_with<CACHE_BF16>(const Cache&, int, const int32_t*, const Queries&, Pieces, float*, size_t,
                               AttentionScratch&);
template void merge_with<CACHE_BF16>(int, const Queries&, const float*, size_t, float*);

}  // namespace trivet
