#include "twml_ops/include/twml_ops_scorer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/scorer/scorer.h"
#include "cc/serving/served_model.h"
#include "cc/serving/thread_pool.h"

struct twml_ops_scorer {
  std::unique_ptr<twml::serving::ServedModel> model;
};

struct twml_ops_threads {
  explicit twml_ops_threads(int num_threads) : pool(num_threads) {}
  twml::serving::ThreadPool pool;
};

namespace {

using twml::Status;
using twml::scorer::Form;
using twml::scorer::ProgramInput;
using twml::scorer::Request;
using twml::scorer::RequestArray;
using twml::scorer::Scorer;

int32_t Fail(int32_t code, const char* message, char* error, size_t error_size) {
  if (error != nullptr && error_size > 0) {
    const size_t size = std::min(std::strlen(message), error_size - 1);
    std::memcpy(error, message, size);
    error[size] = '\0';
  }
  return code;
}

// Calls a function that returns a Status, and translates what it throws.
template <class Function>
int32_t Guard(char* error, size_t error_size, const Function& function) {
  try {
    const Status status = function();
    if (status.ok()) return TWML_OPS_SCORER_OK;
    return Fail(TWML_OPS_SCORER_INVALID, status.message().c_str(), error, error_size);
  } catch (const std::bad_alloc&) {
    return Fail(TWML_OPS_SCORER_OUT_OF_MEMORY, "out of memory", error, error_size);
  } catch (const std::exception& e) {
    return Fail(TWML_OPS_SCORER_INVALID, e.what(), error, error_size);
  }
}

// The model that is served now; null if there is none, or no memory: no exception may reach C.
std::shared_ptr<const Scorer> CurrentOf(const twml_ops_scorer* scorer) {
  try {
    return scorer == nullptr ? nullptr : scorer->model->Get();
  } catch (const std::exception&) {
    return nullptr;
  }
}

const std::vector<ProgramInput>& InputsOf(const Scorer& scorer, int32_t set) {
  return set == TWML_OPS_COLUMNS ? scorer.columns() : scorer.features();
}

int32_t KindOf(const ProgramInput& input) {
  switch (input.form) {
    case Form::kDense:
      return TWML_OPS_FLOATS + static_cast<int32_t>(input.type);
    case Form::kStrings:
      return TWML_OPS_STRINGS;
    case Form::kIds:
      return TWML_OPS_IDS;
    case Form::kValues:
      return TWML_OPS_VALUES;
    case Form::kRowSplits:
      return TWML_OPS_ROW_SPLITS;
    case Form::kBagStrings:
      return TWML_OPS_BAG_STRINGS;
  }
  return -1;
}

Status Convert(const twml_ops_scorer_options* given, twml::scorer::TableOptions* out) {
  if (given == nullptr) return Status();
  if (given->size < sizeof(given->size)) {
    return twml::Invalid("size must be sizeof(twml_ops_scorer_options), got ", given->size);
  }
  // A program that was compiled with an earlier header has fewer options, and one with a later
  // header must not set those that this library does not know.
  twml_ops_scorer_options options = {};
  const auto* const bytes = reinterpret_cast<const char*>(given);
  std::memcpy(&options, bytes, std::min(given->size, sizeof(options)));
  for (size_t i = sizeof(options); i < given->size; ++i) {
    if (bytes[i] != 0)
      return twml::Invalid("options has an option that this library does not know");
  }
  if (options.storage < TWML_OPS_TABLES_MAPPED || options.storage > TWML_OPS_TABLES_FILE) {
    return twml::Invalid("storage must be TWML_OPS_TABLES_MAPPED, _MEMORY or _FILE, got ",
                         options.storage);
  }
  out->storage = static_cast<twml::scorer::TableStorage>(options.storage);
  out->direct = options.direct != 0;
  out->sums_cache_bytes = options.sums_cache_bytes;
  if (options.queue_depth != 0) out->reader.depth = options.queue_depth;
  if (options.cache_bytes != 0) out->cache_bytes = options.cache_bytes;
  if (options.least_bytes != 0) out->least_bytes = options.least_bytes;
  return Status();
}

// The arrays of a request in the form of the core. Memory is kept for the next call of the thread.
class Arrays {
 public:
  explicit Arrays(std::vector<RequestArray>* arrays) : arrays_(*arrays) { arrays_.clear(); }

  twml::Span<const RequestArray> Convert(const twml_ops_array* arrays, int64_t size) {
    for (int64_t i = 0; arrays != nullptr && i < size; ++i) {
      RequestArray array;
      array.data = arrays[i].data;
      array.size = arrays[i].size;
      array.offsets = arrays[i].offsets;
      array.num_bytes = arrays[i].num_bytes;
      arrays_.push_back(array);
    }
    return arrays_;
  }

 private:
  std::vector<RequestArray>& arrays_;
};

void CallBody(void* context, int64_t begin, int64_t end) {
  (*static_cast<const std::function<void(int64_t, int64_t)>*>(context))(begin, end);
}

Status Predict(const twml_ops_scorer& scorer, const twml_ops_request& request, float* out,
               int64_t out_size, bool* unreadable) {
  if (request.set != TWML_OPS_FEATURES && request.set != TWML_OPS_COLUMNS) {
    return twml::Invalid("set must be TWML_OPS_FEATURES or TWML_OPS_COLUMNS, got ", request.set);
  }
  if (request.threads != nullptr && request.parallel_for != nullptr) {
    return twml::Invalid("a request must have threads or parallel_for, not both");
  }
  if (out == nullptr && out_size > 0) return twml::Invalid("out must not be null");
  const std::shared_ptr<const Scorer> current = scorer.model->Get();
  const auto expected = static_cast<int64_t>(InputsOf(*current, request.set).size());
  const bool complete = request.num_arrays == expected && request.arrays != nullptr;
  if (expected > 0 && !complete) {
    return twml::Invalid("a request must have ", expected, " arrays, got ",
                         request.arrays == nullptr ? 0 : request.num_arrays);
  }
  thread_local std::vector<RequestArray> arrays, user;
  Request converted;
  converted.raw = request.set == TWML_OPS_COLUMNS;
  converted.rows = request.num_rows;
  converted.arrays = Arrays(&arrays).Convert(request.arrays, expected);
  converted.user = Arrays(&user).Convert(request.user, expected);
  if (request.parallel_for != nullptr) {
    const auto parallel_for = [&request](int64_t total, int64_t cost,
                                         const std::function<void(int64_t, int64_t)>& body) {
      request.parallel_for(request.pool, total, cost, CallBody,
                           const_cast<std::function<void(int64_t, int64_t)>*>(&body));
    };
    return current->Predict(converted, parallel_for, out, out_size, unreadable);
  }
  if (request.threads != nullptr) {
    twml::serving::ThreadPool& pool = request.threads->pool;
    const auto parallel_for = [&pool](int64_t total, int64_t cost,
                                      const std::function<void(int64_t, int64_t)>& body) {
      pool.Run(total, cost, pool.num_threads(), body);
    };
    return current->Predict(converted, parallel_for, out, out_size, unreadable);
  }
  return current->Predict(converted, twml::Serial, out, out_size, unreadable);
}

}  // namespace

extern "C" {

int32_t twml_ops_scorer_abi_version(void) { return TWML_OPS_SCORER_ABI_VERSION; }

int32_t twml_ops_scorer_load(const char* folder, twml_ops_scorer** scorer, char* error,
                             size_t error_size) {
  return twml_ops_scorer_open(folder, nullptr, scorer, error, error_size);
}

int32_t twml_ops_scorer_open(const char* folder, const twml_ops_scorer_options* options,
                             twml_ops_scorer** scorer, char* error, size_t error_size) {
  return Guard(error, error_size, [&] {
    if (folder == nullptr || scorer == nullptr) {
      return twml::Invalid("folder and scorer must not be null");
    }
    twml::scorer::TableOptions converted;
    TWML_RETURN_IF_ERROR(Convert(options, &converted));
    auto loaded = std::make_unique<twml_ops_scorer>();
    TWML_RETURN_IF_ERROR(twml::serving::ServedModel::Load(folder, converted, &loaded->model));
    *scorer = loaded.release();
    return Status();
  });
}

int32_t twml_ops_scorer_get_statistics(const twml_ops_scorer* scorer,
                                       twml_ops_scorer_statistics* statistics, char* error,
                                       size_t error_size) {
  return Guard(error, error_size, [&] {
    if (scorer == nullptr || statistics == nullptr) {
      return twml::Invalid("scorer and statistics must not be null");
    }
    const twml::scorer::TableStatistics s = scorer->model->Get()->tables().statistics();
    const twml_ops_scorer_statistics all = {
        statistics->size, s.entries,    s.rows,         s.hits,     s.misses,
        s.reads,          s.bytes_read, s.bytes_needed, s.sum_hits, s.sum_misses};
    // A program that was compiled with an earlier header has a smaller struct.
    std::memcpy(statistics, &all, std::min(statistics->size, sizeof(all)));
    return Status();
  });
}

int32_t twml_ops_scorer_reload(twml_ops_scorer* scorer, const char* folder, char* error,
                               size_t error_size) {
  return Guard(error, error_size, [&] {
    if (folder == nullptr || scorer == nullptr) {
      return twml::Invalid("folder and scorer must not be null");
    }
    return scorer->model->Reload(folder);
  });
}

void twml_ops_scorer_free(twml_ops_scorer* scorer) { delete scorer; }

twml_ops_threads* twml_ops_threads_new(int32_t num_threads) {
  constexpr int32_t kMost = 1024;
  try {
    return new twml_ops_threads(std::min(num_threads, kMost));
  } catch (const std::exception&) {
    return nullptr;
  }
}

void twml_ops_threads_free(twml_ops_threads* threads) { delete threads; }

int64_t twml_ops_scorer_num_inputs(const twml_ops_scorer* scorer, int32_t set) {
  const std::shared_ptr<const Scorer> current = CurrentOf(scorer);
  if (current == nullptr || (set != TWML_OPS_FEATURES && set != TWML_OPS_COLUMNS)) return -1;
  return static_cast<int64_t>(InputsOf(*current, set).size());
}

int32_t twml_ops_scorer_input(const twml_ops_scorer* scorer, int32_t set, int64_t i,
                              twml_ops_input* input) {
  const std::shared_ptr<const Scorer> current = CurrentOf(scorer);
  if (current == nullptr || (set != TWML_OPS_FEATURES && set != TWML_OPS_COLUMNS) ||
      input == nullptr) {
    return TWML_OPS_SCORER_INVALID;
  }
  const auto& inputs = InputsOf(*current, set);
  if (i < 0 || i >= static_cast<int64_t>(inputs.size())) return TWML_OPS_SCORER_INVALID;
  const ProgramInput& found = inputs[static_cast<size_t>(i)];
  input->name = found.name.c_str();
  input->kind = KindOf(found);
  input->width = 0;
  if (found.form == Form::kDense) {
    input->width = found.shape_known ? 1 : -1;
    for (const int64_t dim : found.dims) input->width *= dim;
  }
  if (found.form == Form::kStrings) input->width = found.num_strings();
  return TWML_OPS_SCORER_OK;
}

int64_t twml_ops_scorer_num_outputs(const twml_ops_scorer* scorer) {
  const std::shared_ptr<const Scorer> current = CurrentOf(scorer);
  if (current == nullptr) return -1;
  return std::max<int64_t>(1, static_cast<int64_t>(current->outputs().size()));
}

int32_t twml_ops_scorer_output(const twml_ops_scorer* scorer, int64_t i, twml_ops_output* output) {
  const std::shared_ptr<const Scorer> current = CurrentOf(scorer);
  if (current == nullptr || i < 0 || output == nullptr) return TWML_OPS_SCORER_INVALID;
  const auto& outputs = current->outputs();
  if (outputs.empty() && i == 0) {
    *output = {current->output_name().c_str(), 0, current->output_width()};
    return TWML_OPS_SCORER_OK;
  }
  if (i >= static_cast<int64_t>(outputs.size())) return TWML_OPS_SCORER_INVALID;
  const twml::scorer::ProgramOutput& found = outputs[static_cast<size_t>(i)];
  *output = {found.name.c_str(), found.first, found.width};
  return TWML_OPS_SCORER_OK;
}

int64_t twml_ops_scorer_output_width(const twml_ops_scorer* scorer) {
  const std::shared_ptr<const Scorer> current = CurrentOf(scorer);
  return current == nullptr ? -1 : current->output_width();
}

int32_t twml_ops_scorer_predict(const twml_ops_scorer* scorer, const twml_ops_request* request,
                                float* out, int64_t out_size, char* error, size_t error_size) {
  bool unreadable = false;
  const int32_t code = Guard(error, error_size, [&] {
    if (scorer == nullptr || request == nullptr) {
      return twml::Invalid("scorer and request must not be null");
    }
    return Predict(*scorer, *request, out, out_size, &unreadable);
  });
  return unreadable ? TWML_OPS_SCORER_UNREADABLE : code;
}

}  // extern "C"
