#include "cc/core/block_io.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#define TWML_HAS_IO_URING 1
#endif

namespace twml {
namespace {

constexpr int kMaxThreads = 16;  // without io_uring

// Reads or writes all bytes of a request by system calls.
int RunNow(int fd, const BlockRequest& request) {
  for (int64_t done = 0; done < request.bytes;) {
    char* const buffer = request.buffer + done;
    const auto size = static_cast<size_t>(request.bytes - done);
    const auto offset = static_cast<off_t>(request.offset + done);
    const ssize_t n =
        request.write ? pwrite(fd, buffer, size, offset) : pread(fd, buffer, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return request.write ? ENOSPC : BlockRequest::kEndOfFile;
    done += n;
  }
  return 0;
}

}  // namespace

std::string DescribeError(int error) {
  if (error == BlockRequest::kEndOfFile) return "the file ends too early";
  return std::generic_category().message(error);
}

#ifdef TWML_HAS_IO_URING

// The two queues that a process shares with the kernel; see io_uring(7).
class BlockIo::Ring {
 public:
  // Returns null if the kernel has no io_uring, or an older one without the operations that are
  // used here (Linux 5.6 has them), or does not permit it.
  static std::unique_ptr<Ring> Open(int depth) {
    io_uring_params params;
    std::memset(&params, 0, sizeof(params));
    const auto fd = static_cast<int>(syscall(SYS_io_uring_setup, depth, &params));
    if (fd < 0) return nullptr;
    std::unique_ptr<Ring> ring(new Ring(fd));
    if ((params.features & IORING_FEAT_RW_CUR_POS) == 0) return nullptr;
    return ring->Map(params) ? std::move(ring) : nullptr;
  }

  ~Ring() {
    for (const auto& [address, size] : maps_) munmap(address, size);
    close(fd_);
  }

  // Appends to the submission queue, which must have room.
  void Push(int fd, const BlockRequest& request, int64_t done, uint64_t tag) {
    const unsigned tail = *submission_tail_;
    const unsigned at = tail & *submission_mask_;
    io_uring_sqe& entry = entries_[at];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = request.write ? IORING_OP_WRITE : IORING_OP_READ;
    entry.fd = fd;
    entry.addr = reinterpret_cast<uint64_t>(request.buffer + done);
    entry.len = static_cast<uint32_t>(std::min<int64_t>(request.bytes - done, 1 << 30));
    entry.off = static_cast<uint64_t>(request.offset + done);
    entry.user_data = tag;
    submission_array_[at] = at;
    __atomic_store_n(submission_tail_, tail + 1, __ATOMIC_RELEASE);
    ++pushed_;
  }

  // Submits what was pushed and waits for a completion. Returns 0 or a value of errno.
  int SubmitAndWait() {
    const auto n = syscall(SYS_io_uring_enter, fd_, pushed_, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (n < 0) return errno == EINTR || errno == EAGAIN || errno == EBUSY ? 0 : errno;
    pushed_ -= static_cast<unsigned>(n);
    return 0;
  }

  // Calls body(tag) for each request that was pushed and not submitted, which is forgotten.
  template <class Body>
  void TakeBack(Body body) {
    for (; pushed_ > 0; --pushed_) {
      const unsigned last = *submission_tail_ - 1;
      const uint64_t tag = entries_[submission_array_[last & *submission_mask_]].user_data;
      __atomic_store_n(submission_tail_, last, __ATOMIC_RELEASE);
      body(tag);
    }
  }

  // Calls body(tag, result) for each completion.
  template <class Body>
  void ForCompletions(Body body) {
    unsigned head = *completion_head_;
    while (head != __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE)) {
      const io_uring_cqe completion = completions_[head & *completion_mask_];
      __atomic_store_n(completion_head_, ++head, __ATOMIC_RELEASE);
      body(completion.user_data, completion.res);
    }
  }

 private:
  explicit Ring(int fd) : fd_(fd) {}

  bool Map(const io_uring_params& params) {
    const size_t submission_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    const size_t completion_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    char* const submission = MapPart(submission_bytes, IORING_OFF_SQ_RING);
    char* const completion = MapPart(completion_bytes, IORING_OFF_CQ_RING);
    char* const entries = MapPart(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
    if (submission == nullptr || completion == nullptr || entries == nullptr) return false;
    submission_tail_ = reinterpret_cast<unsigned*>(submission + params.sq_off.tail);
    submission_mask_ = reinterpret_cast<unsigned*>(submission + params.sq_off.ring_mask);
    submission_array_ = reinterpret_cast<unsigned*>(submission + params.sq_off.array);
    completion_head_ = reinterpret_cast<unsigned*>(completion + params.cq_off.head);
    completion_tail_ = reinterpret_cast<unsigned*>(completion + params.cq_off.tail);
    completion_mask_ = reinterpret_cast<unsigned*>(completion + params.cq_off.ring_mask);
    completions_ = reinterpret_cast<io_uring_cqe*>(completion + params.cq_off.cqes);
    entries_ = reinterpret_cast<io_uring_sqe*>(entries);
    return true;
  }

  char* MapPart(size_t bytes, int64_t offset) {
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                               fd_, static_cast<off_t>(offset));
    if (address == MAP_FAILED) return nullptr;
    maps_.emplace_back(address, bytes);
    return static_cast<char*>(address);
  }

  const int fd_;
  std::vector<std::pair<void*, size_t>> maps_;
  unsigned *submission_tail_, *submission_mask_, *submission_array_;
  unsigned *completion_head_, *completion_tail_, *completion_mask_;
  io_uring_cqe* completions_;
  io_uring_sqe* entries_;
  unsigned pushed_ = 0;
};

void BlockIo::RunWithIoUring() {
  struct Running {
    BlockRequest request;
    int64_t done = 0;
  };
  std::vector<Running> running(depth_);
  std::vector<uint64_t> idle;
  for (int i = depth_ - 1; i >= 0; --i) idle.push_back(i);
  const auto finish = [&](uint64_t tag, int error) {
    const auto done = std::move(running[tag].request.done);
    idle.push_back(tag);
    done(error);
  };
  std::vector<BlockRequest> taken;
  taken.reserve(depth_);
  for (;;) {
    const bool nothing_runs = static_cast<int>(idle.size()) == depth_;
    Take(static_cast<int>(idle.size()), nothing_runs, &taken);
    if (nothing_runs && taken.empty()) return;
    for (BlockRequest& request : taken) {
      const uint64_t tag = idle.back();
      idle.pop_back();
      running[tag] = {std::move(request), 0};
      ring_->Push(fd_, running[tag].request, 0, tag);
    }
    if (const int error = ring_->SubmitAndWait(); error != 0) {
      // The kernel took none of them. Those that it had taken before may still be completed.
      ring_->TakeBack([&](uint64_t tag) { finish(tag, error); });
      if (static_cast<int>(idle.size()) < depth_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    ring_->ForCompletions([&](uint64_t tag, int result) {
      Running& each = running[tag];
      if (result == -EINTR || result == -EAGAIN) {
        ring_->Push(fd_, each.request, each.done, tag);
      } else if (result < 0) {
        finish(tag, -result);
      } else if (result == 0 && each.request.bytes > each.done) {
        finish(tag, each.request.write ? ENOSPC : BlockRequest::kEndOfFile);
      } else if ((each.done += result) < each.request.bytes) {
        ring_->Push(fd_, each.request, each.done, tag);
      } else {
        finish(tag, 0);
      }
    });
  }
}

#else

class BlockIo::Ring {
 public:
  static std::unique_ptr<Ring> Open(int) { return nullptr; }
};

void BlockIo::RunWithIoUring() {}

#endif

BlockIo::BlockIo(int fd, int depth, bool use_io_uring) : fd_(fd), depth_(std::max(depth, 1)) {
  if (use_io_uring) ring_ = Ring::Open(depth_);
  if (ring_ != nullptr) {
    threads_.emplace_back([this] { RunWithIoUring(); });
    return;
  }
  const int count = std::min(depth_, kMaxThreads);
  threads_.reserve(count);
  try {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { RunWithSystemCalls(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // fewer threads are slower
  }
}

BlockIo::~BlockIo() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BlockIo::Submit(BlockRequest request, bool urgent) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (urgent) {
      waiting_.push_front(std::move(request));
    } else {
      waiting_.push_back(std::move(request));
    }
  }
  changed_.notify_one();
}

void BlockIo::Take(int limit, bool wait, std::vector<BlockRequest>* taken) {
  taken->clear();
  std::unique_lock<std::mutex> lock(mu_);
  if (wait) changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
  while (!waiting_.empty() && static_cast<int>(taken->size()) < limit) {
    taken->push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void BlockIo::RunWithSystemCalls() {
  std::vector<BlockRequest> taken;
  taken.reserve(1);
  for (;;) {
    Take(1, true, &taken);
    if (taken.empty()) return;
    const auto done = std::move(taken[0].done);
    done(RunNow(fd_, taken[0]));
  }
}

}  // namespace twml
