// The library of CUDA kernels, which is loaded when it is needed. Nothing of CUDA is linked.
#ifndef TWML_TF_KERNELS_CUDA_LIBRARY_H_
#define TWML_TF_KERNELS_CUDA_LIBRARY_H_

#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "cc/cuda/twml_cuda.h"

namespace twml {

// The functions of the library, by the names of twml_cuda.h without their prefix.
struct CudaLibrary {
#define TWML_CUDA_FUNCTION(name) decltype(&twml_cuda_##name) name = nullptr
  TWML_CUDA_FUNCTION(abi);
  TWML_CUDA_FUNCTION(num_devices);
  TWML_CUDA_FUNCTION(copy_async);
  TWML_CUDA_FUNCTION(synchronize);
  TWML_CUDA_FUNCTION(reports_new);
  TWML_CUDA_FUNCTION(reports_device);
  TWML_CUDA_FUNCTION(reports_fetch);
  TWML_CUDA_FUNCTION(reports_seen);
  TWML_CUDA_FUNCTION(reports_reset);
  TWML_CUDA_FUNCTION(sparse_linear);
  TWML_CUDA_FUNCTION(values_grad);
  TWML_CUDA_FUNCTION(group_batch);
  TWML_CUDA_FUNCTION(copy_ids);
  TWML_CUDA_FUNCTION(sum_groups);
  TWML_CUDA_FUNCTION(update_groups);
  TWML_CUDA_FUNCTION(discretize_sizes);
  TWML_CUDA_FUNCTION(discretize);
  TWML_CUDA_FUNCTION(max_norm);
#undef TWML_CUDA_FUNCTION

  // Loads the library. Returns why that failed, or an empty string.
  std::string Load(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return dlerror();
    std::string missing;
    const auto find = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::decay_t<decltype(*function)>>(dlsym(library, name));
      if (*function == nullptr) missing = absl::StrCat(path, " has no function ", name);
    };
#define TWML_CUDA_FUNCTION(name) find("twml_cuda_" #name, &name)
    TWML_CUDA_FUNCTION(abi);
    TWML_CUDA_FUNCTION(num_devices);
    TWML_CUDA_FUNCTION(copy_async);
    TWML_CUDA_FUNCTION(synchronize);
    TWML_CUDA_FUNCTION(reports_new);
    TWML_CUDA_FUNCTION(reports_device);
    TWML_CUDA_FUNCTION(reports_fetch);
    TWML_CUDA_FUNCTION(reports_seen);
    TWML_CUDA_FUNCTION(reports_reset);
    TWML_CUDA_FUNCTION(sparse_linear);
    TWML_CUDA_FUNCTION(values_grad);
    TWML_CUDA_FUNCTION(group_batch);
    TWML_CUDA_FUNCTION(copy_ids);
    TWML_CUDA_FUNCTION(sum_groups);
    TWML_CUDA_FUNCTION(update_groups);
    TWML_CUDA_FUNCTION(discretize_sizes);
    TWML_CUDA_FUNCTION(discretize);
    TWML_CUDA_FUNCTION(max_norm);
#undef TWML_CUDA_FUNCTION
    if (!missing.empty()) return missing;
    if (abi() != TWML_CUDA_ABI) {
      return absl::StrCat(path, " has version ", abi(), " of its interface, expected ",
                          TWML_CUDA_ABI);
    }
    if (num_devices() < 1) return "no CUDA device or driver was found";
    return "";
  }
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_CUDA_LIBRARY_H_
