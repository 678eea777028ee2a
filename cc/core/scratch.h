// Working memory that is reused between calls, because faulting in fresh pages would cost more than
// the work done in them.
#ifndef TWML_CORE_SCRATCH_H_
#define TWML_CORE_SCRATCH_H_

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace twml {

// Blocks come from a process-wide pool that keeps at most kMaxPooledScratchBytes of released blocks
// for later calls. The content of a block is undefined.
constexpr int64_t kMaxPooledScratchBytes = int64_t{1} << 28;
void* AcquireScratch(int64_t bytes);
void ReleaseScratch(void* block, int64_t bytes);

// An uninitialized array of n items in such a block.
template <class T>
class Scratch {
  static_assert(std::is_trivial_v<T>);

 public:
  explicit Scratch(int64_t n = 0)
      : bytes_(n * static_cast<int64_t>(sizeof(T))),
        data_(n > 0 ? static_cast<T*>(AcquireScratch(bytes_)) : nullptr) {}
  Scratch(Scratch&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Scratch() {
    if (data_ != nullptr) ReleaseScratch(data_, bytes_);
  }

  T* data() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  int64_t bytes_;
  T* data_;
};

// An array of n items like Scratch, whose copies share the block.
template <class T>
class SharedScratch {
 public:
  explicit SharedScratch(int64_t n = 0) : block_(std::make_shared<Scratch<T>>(n)) {}

  T* data() const { return block_->data(); }
  T& operator[](int64_t i) const { return (*block_)[i]; }

 private:
  std::shared_ptr<Scratch<T>> block_;
};

}  // namespace twml

#endif  // TWML_CORE_SCRATCH_H_
