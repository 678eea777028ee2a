#include "cc/core/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace twml {

AlignedBuffer::AlignedBuffer(int64_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
  if (bytes_ == 0) return;
#ifdef __SANITIZE_ADDRESS__  // which finds accesses beyond the end of what malloc returns only
  void* const data = std::aligned_alloc(kPage, static_cast<size_t>(bytes_));
  if (data == nullptr) throw std::bad_alloc();
#else
  void* const data = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
#endif
  data_ = static_cast<char*>(data);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ == nullptr) return;
#ifdef __SANITIZE_ADDRESS__
  std::free(data_);
#else
  munmap(data_, static_cast<size_t>(bytes_));
#endif
}

}  // namespace twml
