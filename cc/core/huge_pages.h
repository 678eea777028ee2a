// Requests huge pages for large tables, so that reading a random row costs no page table walk.
#ifndef TWML_CORE_HUGE_PAGES_H_
#define TWML_CORE_HUGE_PAGES_H_

#include <atomic>
#include <cstdint>

namespace twml {

// Remembers the last table, so that advising again costs only a comparison.
class HugePages {
 public:
  // Advises the kernel to back a table of at least 16 MiB with huge pages, immediately if it can.
  // The content does not change. Nothing happens if the system has no huge pages.
  void Advise(const void* data, int64_t bytes);

 private:
  std::atomic<const void*> advised_{nullptr};
};

}  // namespace twml

#endif  // TWML_CORE_HUGE_PAGES_H_
