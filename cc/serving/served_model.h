// A scorer that can be replaced while requests run.
#ifndef TWML_SERVING_SERVED_MODEL_H_
#define TWML_SERVING_SERVED_MODEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "cc/core/fork.h"
#include "cc/core/scorer/scorer.h"
#include "cc/core/status.h"
#include "cc/core/thread_number.h"

namespace twml::serving {

// Any number of threads may call all functions. A child of fork() has the version that its parent
// had, and its own ones from then on.
class ServedModel {
 public:
  ~ServedModel();
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  // `options` also hold for the models that replace it.
  static Status Load(const std::string& folder, const scorer::TableOptions& options,
                     std::unique_ptr<ServedModel>* out);

  // The current version. It lives as long as it is held, also if it is replaced.
  std::shared_ptr<const scorer::Scorer> Get() const {
    const Slot& slot = slots()[ThreadNumber() % kSlots];
    std::lock_guard<std::mutex> lock(slot.mu);
    return slot.scorer;
  }

  // Replaces the scorer by that of a folder. Requests that have begun end with the old version; its
  // memory is freed with the last of them. If the call fails, nothing has changed. It fails, among
  // others, if the new scorer takes other arrays or returns an output of another width. Of several
  // calls at the same time, the one that began last decides, however long each of them reads.
  Status Reload(const std::string& folder) {
    const int64_t number = BeginReload();
    std::shared_ptr<const scorer::Scorer> loaded;
    TWML_RETURN_IF_ERROR(scorer::Scorer::Load(folder, options_, &loaded));
    return EndReload(number, loaded);
  }

  // The two parts of Reload: the number of a call, and its end. A call that began after this one
  // may have ended before; then its scorer stays.
  int64_t BeginReload() { return ++reloads_; }
  Status EndReload(int64_t number, const std::shared_ptr<const scorer::Scorer>& loaded);

 private:
  using Current = std::shared_ptr<const scorer::Scorer>;

  ServedModel(const scorer::TableOptions& options, const Current& loaded);

  static Current OwnReference(const Current& scorer);
  void Replace(const Current& scorer);

  // Threads with different slots share neither a lock nor a counter of references, so no thread
  // waits for one that the system has interrupted.
  struct alignas(64) Slot {
    mutable std::mutex mu;
    std::shared_ptr<const scorer::Scorer> scorer;
  };
  static constexpr uint32_t kSlots = 64;

  Slot* slots() const {
    return slots_.Get([this] { return MakeSlots(); }).slots;
  }
  struct Slots {
    Slot slots[kSlots];
  };
  std::unique_ptr<Slots> MakeSlots() const;

  const scorer::TableOptions options_;
  std::atomic<int64_t> reloads_{0};
  PerProcess<std::mutex> mu_;  // of the following ones
  int64_t installed_ = 0;      // the number of the last reload that has replaced the scorer
  std::atomic<const Current*> current_;  // whole at any time, so that a child finds it
  PerProcess<Slots> slots_;
};

}  // namespace twml::serving

#endif  // TWML_SERVING_SERVED_MODEL_H_
