// Groups the entries of a batch by id, as cc/core/group_by_id.h.
#ifndef TWML_CUDA_GROUP_BY_ID_H_
#define TWML_CUDA_GROUP_BY_ID_H_

#include "cc/cuda/twml_cuda.h"
#include "cc/cuda/workspace.h"

namespace twml::cuda {

int GroupById(Workspace* workspace, const TwmlCudaCall& call, const TwmlCudaBatch& batch,
              int64_t input_dim, const TwmlCudaGroups& groups);

}  // namespace twml::cuda

#endif  // TWML_CUDA_GROUP_BY_ID_H_
