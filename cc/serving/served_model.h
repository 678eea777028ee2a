// A scorer that can be replaced while requests run.
#ifndef TWML_SERVING_SERVED_MODEL_H_
#define TWML_SERVING_SERVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "cc/core/scorer/scorer.h"
#include "cc/core/status.h"
#include "cc/core/thread_number.h"

namespace twml::serving {

// Any number of threads may call all functions.
class ServedModel {
 public:
  // `options` are also those of the models that replace it.
  static Status Load(const std::string& folder, const scorer::TableOptions& options,
                     std::unique_ptr<ServedModel>* out);

  // The current version. It lives as long as it is held, also if it is replaced.
  std::shared_ptr<const scorer::Scorer> Get() const {
    const Slot& slot = slots_[ThreadNumber() % kSlots];
    std::lock_guard<std::mutex> lock(slot.mu);
    return slot.scorer;
  }

  // Replaces the scorer by that of a folder. Requests that have begun end with the old version; its
  // memory is freed with the last of them. If the call fails, nothing has changed. It fails, among
  // others, if the new scorer takes other arrays or returns an output of another width.
  Status Reload(const std::string& folder);

 private:
  explicit ServedModel(const scorer::TableOptions& options) : options_(options) {}

  void Replace(const std::shared_ptr<const scorer::Scorer>& scorer);

  // Threads with different slots share neither a lock nor a counter of references, so no thread
  // waits for one that the system has interrupted.
  struct alignas(64) Slot {
    mutable std::mutex mu;
    std::shared_ptr<const scorer::Scorer> scorer;
  };
  static constexpr uint32_t kSlots = 64;

  const scorer::TableOptions options_;
  std::mutex reload_;
  Slot slots_[kSlots];
};

}  // namespace twml::serving

#endif  // TWML_SERVING_SERVED_MODEL_H_
