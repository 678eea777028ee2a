// Large tables on huge pages: a random row then costs no walk of the page table.
#ifndef TWML_CORE_HUGE_PAGES_H_
#define TWML_CORE_HUGE_PAGES_H_

#include <atomic>
#include <cstdint>

namespace twml {

// Remembers the table it last asked for, so asking again costs a comparison.
class HugePages {
 public:
  // Asks the kernel to back a table of 16 MiB or more with huge pages, at once where it can. The
  // content stays; where the system has no huge pages nothing happens.
  void Advise(const void* data, int64_t bytes);

 private:
  std::atomic<const void*> advised_{nullptr};
};

}  // namespace twml

#endif  // TWML_CORE_HUGE_PAGES_H_
