// Working memory that is kept between calls: fresh pages cost more than the work done in them.
#ifndef TWML_CORE_SCRATCH_H_
#define TWML_CORE_SCRATCH_H_

#include <cstdint>
#include <type_traits>
#include <utility>

namespace twml {

// Blocks come from a process-wide pool that keeps at most kScratchKept bytes for the next caller.
// Their content is undefined.
constexpr int64_t kScratchKept = int64_t{1} << 28;
void* TakeScratch(int64_t bytes);
void GiveScratchBack(void* block, int64_t bytes);

// An uninitialized array of n items in such a block.
template <class T>
class Scratch {
  static_assert(std::is_trivial_v<T>);

 public:
  explicit Scratch(int64_t n = 0)
      : bytes_(n * static_cast<int64_t>(sizeof(T))),
        data_(n > 0 ? static_cast<T*>(TakeScratch(bytes_)) : nullptr) {}
  Scratch(Scratch&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Scratch() {
    if (data_ != nullptr) GiveScratchBack(data_, bytes_);
  }

  T* data() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  int64_t bytes_;
  T* data_;
};

}  // namespace twml

#endif  // TWML_CORE_SCRATCH_H_
