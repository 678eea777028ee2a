// Asynchronous reads and writes of a file.
#ifndef TWML_CORE_BLOCK_IO_H_
#define TWML_CORE_BLOCK_IO_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/io_ring.h"

namespace twml {

// One read or write. `done` is called once, on a thread of the BlockIo, with 0, a value of errno,
// or kEndOfFile. It must not wait for other requests, and must not throw.
struct BlockRequest {
  static constexpr int kEndOfFile = -1;

  bool write = false;
  int64_t offset = 0;
  int64_t bytes = 0;
  char* buffer = nullptr;
  std::function<void(int error)> done;
};

// A fault that a test injects into a read or a write. The function returns the number of bytes to
// transfer, from 1 to `bytes`, or a negative errno, which becomes the result. Any thread calls it.
using IoFault = std::function<int64_t(bool write, int64_t bytes)>;

// What went wrong, for the message of a status.
std::string DescribeError(int error);

// Runs requests on a file, up to `depth` of them at the same time, in any order. On Linux one
// thread submits them with io_uring. Where that is missing or not permitted, threads call pread and
// pwrite.
class BlockIo {
 public:
  BlockIo(int fd, int depth, bool use_io_uring, IoFault fault = nullptr);
  // All requests must be done.
  ~BlockIo();
  BlockIo(const BlockIo&) = delete;
  BlockIo& operator=(const BlockIo&) = delete;

  // Queues a request: an urgent one before all others in the queue, any other at its end. If this
  // throws, the request has not been queued.
  void Submit(BlockRequest request, bool urgent);

  int depth() const { return depth_; }
  bool uses_io_uring() const { return ring_ != nullptr; }

 private:
  // Takes up to `limit` waiting requests, without allocating. Waits for one if `wait`; if there are
  // none then, the threads shall end.
  void Take(int limit, bool wait, std::vector<BlockRequest>* taken);
  struct RingRequests;

  void RunWithIoUring(RingRequests* requests);
  void RunWithSystemCalls(std::vector<BlockRequest>* taken);

  const int fd_;
  const int depth_;
  const IoFault fault_;
  std::unique_ptr<IoRing> ring_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<BlockRequest> waiting_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace twml

#endif  // TWML_CORE_BLOCK_IO_H_
