// Thread pools and sizes of structs for Python. Test: test_native_library.py, test_pool.py.
#include "abi.h"

#include <system_error>

#include "pool.h"
#include "scratch.h"
#include "stream.h"

using namespace trivet;

extern "C" {

void* trivet_pool_create(int32_t num_threads) {
  try {
    return new Pool(num_threads);
  } catch (const std::system_error&) {
    return nullptr;
  }
}
void trivet_pool_destroy(void* pool) { delete (Pool*)pool; }
int32_t trivet_pool_crew_size(void* pool) { return ((Pool*)pool)->crew_size(); }

void* trivet_stream_create(int32_t num_threads) {
  try {
    return new Stream(num_threads);
  } catch (const std::system_error&) {
    return nullptr;
  }
}
void trivet_stream_destroy(void* stream) { delete (Stream*)stream; }
void trivet_stream_wait(void* stream, int64_t number) { ((Stream*)stream)->wait(number); }

int64_t trivet_scratch_bytes() { return sizeof(Scratch); }

int64_t trivet_struct_bytes(int32_t which) {
  const int64_t sizes[] = {sizeof(Weight),      sizeof(Activations), sizeof(Cache),     sizeof(TrivetPack),
                           sizeof(TrivetLayer), sizeof(TrivetRope),  sizeof(TrivetModel),
                           sizeof(TrivetStep),  sizeof(TrivetSampling), sizeof(LayerQueries),
                           sizeof(StepSequences), sizeof(AttentionSpace), sizeof(TrivetDraws),
                           sizeof(TrivetProgress), sizeof(AdaptedMatrix), sizeof(AdapterSpace)};
  return sizes[which];
}
}
