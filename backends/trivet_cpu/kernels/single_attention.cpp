// Attention by itself, over a cache and plain rows: for tests, and for models that the step does not know.
//
// Reference: models/torch_attention.py. Test: test_native_attention.py.
#include <memory>
#include <new>

#include "abi.h"
#include "pool.h"
#include "tiles.h"

using namespace trivet;

extern "C" int32_t trivet_attend_cache(void* pool, const LayerQueries* layer, const StepSequences* seqs,
                                       int64_t num_partials) try {
  struct Job {
    Pool& pool;
    const LayerQueries& layer;
    AttentionWork& work;
    AttentionScratch* scratch;
  };
  const int num_threads = ((Pool*)pool)->num_threads(), head_dim = layer->cache->head_dim;
  HeadLimits limits;
  limits.include(layer->num_heads, *layer->cache);
  const std::unique_ptr<float[]> partials(new float[num_partials]);
  const std::unique_ptr<AttentionScratch[]> scratch(new AttentionScratch[num_threads]);
  const int64_t stride = 2 * PIECE_KEYS * head_dim;
  const std::unique_ptr<BFloat[]> unpacked(new BFloat[num_threads * stride]);
  for (int thread = 0; thread < num_threads; thread++) scratch[thread].unpacked = unpacked.get() + thread * stride;
  AttentionWork work(*seqs, limits, num_threads, {partials.get(), num_partials, nullptr, 0});
  Job job{*(Pool*)pool, *layer, work, scratch.get()};
  job.pool.run(
      [](void* argument, int thread) {
        const TilesInUse in_use;
        const Job& job = *(Job*)argument;
        const int heads = job.layer.cache->num_heads, num_units = job.work.num_units() * heads;
        for (int first, last; job.pool.take(thread, num_units, first, last);)
          for (int unit = first; unit < last; unit++)
            job.work.run(job.layer, unit / heads, unit % heads, job.scratch[thread]);
      },
      &job);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
