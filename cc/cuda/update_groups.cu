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

// Updates the tables whose rule and weights have these types, and whose rows are such that a lane
// owns kVec columns.
template <UpdateRule kRule, class W, int kVec>
int Update(const TwmlCudaCall& call, int count, const TwmlCudaGroups* groups,
           const float* const* grads, const TwmlCudaTable* tables, const TwmlCudaRule* rules) {
  Workspace workspace(call);
  const cudaStream_t stream = StreamOf(call);
  Launcher<kVec, float, int32_t, UpdateRows<kRule, W, kVec>> launcher(stream);
  for (int i = 0; i < count; ++i) {
    const TwmlCudaTable& table = tables[i];
    const float* const* slots = rules[i].slots;
    if (rules[i].rule != static_cast<int>(kRule) || (table.bfloat16 != 0) != (sizeof(W) == 2) ||
        groups[i].num_entries == 0 || table.dim == 0 ||
        ColumnsPerLane(table.dim, static_cast<const W*>(table.data), grads[i], slots[0],
                       slots[1]) != kVec) {
      continue;
    }
    Product<float, int32_t> p = GroupsTimesGrad(groups[i], grads[i], table.dim, table.rows);
    TWML_CUDA_RETURN_IF_ERROR(PlanLongSegments(&workspace, stream, p.num_entries, p.dim, &p.longs));
    TWML_CUDA_RETURN_IF_ERROR(
        launcher.Add(p, {groups[i].ids, static_cast<W*>(table.data), table.rows, rules[i]}));
  }
  return launcher.Flush();
}

template <UpdateRule kRule, class W>
int UpdateOfAllWidths(const TwmlCudaCall& call, int count, const TwmlCudaGroups* groups,
                      const float* const* grads, const TwmlCudaTable* tables,
                      const TwmlCudaRule* rules) {
  TWML_CUDA_RETURN_IF_ERROR((Update<kRule, W, 4>(call, count, groups, grads, tables, rules)));
  TWML_CUDA_RETURN_IF_ERROR((Update<kRule, W, 2>(call, count, groups, grads, tables, rules)));
  return Update<kRule, W, 1>(call, count, groups, grads, tables, rules);
}

template <int kVec>
int SumGroups(const TwmlCudaCall& call, const TwmlCudaGroups& groups, const float* grad,
              int64_t dim, float* rows) {
  Workspace workspace(call);
  const cudaStream_t stream = StreamOf(call);
  Product<float, int32_t> p = GroupsTimesGrad(groups, grad, dim, groups.num_entries);
  TWML_CUDA_RETURN_IF_ERROR(PlanLongSegments(&workspace, stream, p.num_entries, dim, &p.longs));
  Launcher<kVec, float, int32_t, StoreRows<kVec>> launcher(stream);
  TWML_CUDA_RETURN_IF_ERROR(launcher.Add(p, {rows}));
  return launcher.Flush();
}

}  // namespace
}  // namespace twml::cuda

#define TWML_API extern "C" __attribute__((visibility("default")))

TWML_API int twml_cuda_sum_groups(const TwmlCudaCall* call, const TwmlCudaGroups* groups,
                                  const float* grad, int64_t dim, float* rows) {
  using namespace twml::cuda;
  if (groups->num_entries == 0 || dim == 0) return 0;
  const int vec = ColumnsPerLane(dim, grad, rows);
  return vec == 4   ? SumGroups<4>(*call, *groups, grad, dim, rows)
         : vec == 2 ? SumGroups<2>(*call, *groups, grad, dim, rows)
                    : SumGroups<1>(*call, *groups, grad, dim, rows);
}

TWML_API int twml_cuda_update_groups(const TwmlCudaCall* call, int count,
                                     const TwmlCudaGroups* groups, const float* const* grads,
                                     const TwmlCudaTable* tables, const TwmlCudaRule* rules) {
  using namespace twml;
  using namespace twml::cuda;
#define TWML_RULE(Name, ...)                                                                       \
  TWML_CUDA_RETURN_IF_ERROR((                                                                      \
      UpdateOfAllWidths<UpdateRule::k##Name, float>(*call, count, groups, grads, tables, rules))); \
  TWML_CUDA_RETURN_IF_ERROR((UpdateOfAllWidths<UpdateRule::k##Name, Bfloat16>(                     \
      *call, count, groups, grads, tables, rules)));
  TWML_FOR_EACH_UPDATE_RULE(TWML_RULE)
#undef TWML_RULE
  return 0;
}
