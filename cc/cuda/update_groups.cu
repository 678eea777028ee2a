// The sums of gradients over groups of equal ids, and the update of a table with them.
#include "cc/cuda/segment_sum.h"
#include "cc/cuda/twml_cuda.h"
#include "cc/cuda/update_rows.h"

namespace twml::cuda {
namespace {

Product<float, int32_t> GroupsTimesGrad(const TwmlCudaGroups& groups, const float* grad,
                                        int64_t dim, int64_t max_groups) {
  Product<float, int32_t> p = {};
  p.table = grad;
  p.table_rows = groups.num_rows;
  p.dim = dim;
  p.ids = groups.rows;
  p.values = groups.values;
  p.splits = groups.splits;
  p.num_entries = groups.num_entries;
  p.num_segments = groups.num_entries < max_groups ? groups.num_entries : max_groups;
  p.device_num_segments = groups.num_groups;
  return p;
}

// Updates the tables whose rule and weights have these types.
template <UpdateRule kRule, class W>
int Update(const TwmlCudaCall& call, int count, const TwmlCudaGroups* groups,
           const float* const* grads, const TwmlCudaTable* tables, const TwmlCudaRule* rules) {
  Workspace workspace(call);
  const cudaStream_t stream = StreamOf(call);
  Launch<float, int32_t, UpdateRows<kRule, W>> launch;
  int filled = 0;
  for (int i = 0; i < count; ++i) {
    const TwmlCudaTable& table = tables[i];
    if (rules[i].rule != static_cast<int>(kRule) || (table.bfloat16 != 0) != (sizeof(W) == 2) ||
        groups[i].num_entries == 0 || table.dim == 0) {
      continue;
    }
    Product<float, int32_t>& p = launch.products[filled];
    p = GroupsTimesGrad(groups[i], grads[i], table.dim, table.rows);
    TWML_CUDA_RETURN_IF_ERROR(PlanLongSegments(&workspace, stream, p.num_entries, p.dim, &p.longs));
    launch.consumers[filled] = {groups[i].ids, static_cast<W*>(table.data), table.rows, rules[i]};
    if (++filled < kTablesPerLaunch) continue;
    TWML_CUDA_RETURN_IF_ERROR(SumAndConsume(stream, filled, launch));
    filled = 0;
  }
  return filled == 0 ? 0 : SumAndConsume(stream, filled, launch);
}

}  // namespace
}  // namespace twml::cuda

#define TWML_API extern "C" __attribute__((visibility("default")))

TWML_API int twml_cuda_sum_groups(const TwmlCudaCall* call, const TwmlCudaGroups* groups,
                                  const float* grad, int64_t dim, float* rows) {
  using namespace twml::cuda;
  if (groups->num_entries == 0 || dim == 0) return 0;
  Workspace workspace(*call);
  Launch<float, int32_t, StoreRows> launch;
  Product<float, int32_t>& p = launch.products[0];
  p = GroupsTimesGrad(*groups, grad, dim, groups->num_entries);
  TWML_CUDA_RETURN_IF_ERROR(
      PlanLongSegments(&workspace, StreamOf(*call), p.num_entries, dim, &p.longs));
  launch.consumers[0] = {rows};
  return SumAndConsume(StreamOf(*call), 1, launch);
}

TWML_API int twml_cuda_update_groups(const TwmlCudaCall* call, int count,
                                     const TwmlCudaGroups* groups, const float* const* grads,
                                     const TwmlCudaTable* tables, const TwmlCudaRule* rules) {
  using namespace twml;
  using namespace twml::cuda;
#define TWML_RULE(Name, ...)                                                             \
  TWML_CUDA_RETURN_IF_ERROR(                                                             \
      (Update<UpdateRule::k##Name, float>(*call, count, groups, grads, tables, rules))); \
  TWML_CUDA_RETURN_IF_ERROR(                                                             \
      (Update<UpdateRule::k##Name, Bfloat16>(*call, count, groups, grads, tables, rules)));
  TWML_FOR_EACH_UPDATE_RULE(TWML_RULE)
#undef TWML_RULE
  return 0;
}
