// The two queues of io_uring, which a process shares with the kernel; see io_uring(7).
#ifndef TWML_CORE_IO_RING_H_
#define TWML_CORE_IO_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace twml {

// Used by one thread at a time.
class IoRing {
 public:
  struct Operation {
    int fd;
    bool write;
    int64_t offset;
    int64_t bytes;
    char* buffer;
  };

  // A ring for up to `depth` operations at the same time. Returns null if the kernel has no
  // io_uring, or an older one without the operations that are used here (Linux 5.6 has them), or
  // does not permit it.
  static std::unique_ptr<IoRing> Open(int depth);
  ~IoRing();
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  // Appends to the submission queue, which must have room.
  void Push(const Operation& operation, uint64_t tag);

  // Submits what was pushed and waits for `completions` of what runs, at least 1 and at most so
  // many as will come. Returns 0 or a value of errno.
  int SubmitAndWait(int completions = 1);

  // Calls body(tag) for each operation that was pushed and not submitted, which is forgotten.
  template <class Body>
  void TakeBack(Body body) {
    while (pushed_ > 0) body(TakeLast());
  }

  // Calls body(tag, result) for each completion: the number of bytes, or a negative errno.
  template <class Body>
  void ForCompletions(Body body) {
    uint64_t tag;
    int result;
    while (TakeCompletion(&tag, &result)) body(tag, result);
  }

 private:
  struct Queues;

  IoRing();
  uint64_t TakeLast();
  bool TakeCompletion(uint64_t* tag, int* result);
  char* MapPart(size_t bytes, int64_t offset);

  int fd_ = -1;
  std::vector<std::pair<void*, size_t>> maps_;
  std::unique_ptr<Queues> queues_;
  unsigned pushed_ = 0;
};

}  // namespace twml

#endif  // TWML_CORE_IO_RING_H_
