// Memory for direct reads and writes of files.
#ifndef TWML_CORE_ALIGNED_BUFFER_H_
#define TWML_CORE_ALIGNED_BUFFER_H_

#include <cstdint>
#include <utility>

namespace twml {

// Whole pages that are mapped for this buffer alone. They take memory when they are first written,
// and the system has them back when the buffer is destroyed; an allocator would keep them.
class AlignedBuffer {
 public:
  static constexpr int64_t kPage = 4096;

  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace twml

#endif  // TWML_CORE_ALIGNED_BUFFER_H_
