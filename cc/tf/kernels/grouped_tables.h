// The attributes of ops with several tables.
#ifndef TWML_TF_KERNELS_GROUPED_TABLES_H_
#define TWML_TF_KERNELS_GROUPED_TABLES_H_

#include <vector>

#include "cc/tf/kernels/tensor_util.h"

namespace twml {

// Reads the number of tables, and for each whether its batch has no values.
inline absl::Status GetGroupedAttributes(OpKernelConstruction* ctx, int* num_tables,
                                         std::vector<bool>* binary) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_tables", num_tables));
  TF_RETURN_IF_ERROR(ctx->GetAttr("binary", binary));
  if (static_cast<int>(binary->size()) == *num_tables) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("binary must have one item for each of ",
                                                 *num_tables, " tables, got ", binary->size()));
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_GROUPED_TABLES_H_
