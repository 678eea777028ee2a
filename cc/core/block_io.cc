#include "cc/core/block_io.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

namespace twml {
namespace {

constexpr int kMaxThreads = 16;  // without io_uring

// Reads or writes all bytes of a request by system calls.
int RunNow(int fd, const BlockRequest& request, const IoFault& fault) {
  for (int64_t done = 0; done < request.bytes;) {
    char* const buffer = request.buffer + done;
    int64_t size = request.bytes - done;
    if (fault) size = fault(request.write, size);
    const auto offset = static_cast<off_t>(request.offset + done);
    ssize_t n = size;
    if (size >= 0) {
      n = request.write ? pwrite(fd, buffer, size, offset) : pread(fd, buffer, size, offset);
      if (n < 0) n = -errno;
    }
    if (n == -EINTR) continue;
    if (n < 0) return static_cast<int>(-n);
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

struct BlockIo::RingRequests {
  struct Running {
    BlockRequest request;
    int64_t done = 0;
    int fault = 0;  // the result, whatever the kernel says
  };

  explicit RingRequests(int depth) : running(depth) {
    idle.reserve(depth);
    for (int i = depth - 1; i >= 0; --i) idle.push_back(i);
    taken.reserve(depth);
  }

  std::vector<Running> running;  // by tag
  std::vector<uint64_t> idle;    // tags
  std::vector<BlockRequest> taken;
};

void BlockIo::RunWithIoUring(RingRequests* requests) {
  auto& running = requests->running;
  auto& idle = requests->idle;
  auto& taken = requests->taken;
  const auto push = [&](uint64_t tag) {
    const BlockRequest& request = running[tag].request;
    const int64_t done = running[tag].done;
    int64_t bytes = request.bytes - done;
    const int64_t asked = fault_ ? fault_(request.write, bytes) : bytes;
    running[tag].fault = static_cast<int>(std::min<int64_t>(asked, 0));
    if (asked > 0) bytes = asked;
    ring_->Push({fd_, request.write, request.offset + done, bytes, request.buffer + done}, tag);
  };
  const auto finish = [&](uint64_t tag, int error) {
    const auto done = std::move(running[tag].request.done);
    idle.push_back(tag);
    done(error);
  };
  for (;;) {
    const bool nothing_runs = static_cast<int>(idle.size()) == depth_;
    Take(static_cast<int>(idle.size()), nothing_runs, &taken);
    if (nothing_runs && taken.empty()) return;
    for (BlockRequest& request : taken) {
      const uint64_t tag = idle.back();
      idle.pop_back();
      running[tag] = {std::move(request), 0};
      push(tag);
    }
    if (const int error = ring_->SubmitAndWait(); error != 0) {
      // The kernel took none of them. Those that it had taken before may still be completed.
      ring_->TakeBack([&](uint64_t tag) { finish(tag, error); });
      if (static_cast<int>(idle.size()) < depth_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    ring_->ForCompletions([&](uint64_t tag, int result) {
      RingRequests::Running& each = running[tag];
      if (each.fault != 0) result = each.fault;
      if (result == -EINTR || result == -EAGAIN) {
        push(tag);
      } else if (result < 0) {
        finish(tag, -result);
      } else if (result == 0 && each.request.bytes > each.done) {
        finish(tag, each.request.write ? ENOSPC : BlockRequest::kEndOfFile);
      } else if ((each.done += result) < each.request.bytes) {
        push(tag);
      } else {
        finish(tag, 0);
      }
    });
  }
}

BlockIo::BlockIo(int fd, int depth, bool use_io_uring, IoFault fault)
    : fd_(fd), depth_(std::max(depth, 1)), fault_(std::move(fault)) {
  // Memory is allocated here and not in the threads, where a failure could not be reported.
  if (use_io_uring) ring_ = IoRing::Open(depth_);
  if (ring_ != nullptr) {
    threads_.emplace_back(
        [this, requests = RingRequests(depth_)]() mutable { RunWithIoUring(&requests); });
    return;
  }
  const int count = std::min(depth_, kMaxThreads);
  threads_.reserve(count);
  try {
    for (int i = 0; i < count; ++i) {
      std::vector<BlockRequest> taken;
      taken.reserve(1);
      threads_.emplace_back(
          [this, taken = std::move(taken)]() mutable { RunWithSystemCalls(&taken); });
    }
  } catch (const std::exception&) {
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

void BlockIo::RunWithSystemCalls(std::vector<BlockRequest>* taken) {
  for (;;) {
    Take(1, true, taken);
    if (taken->empty()) return;
    BlockRequest& request = taken->front();
    const auto done = std::move(request.done);
    done(RunNow(fd_, request, fault_));
  }
}

}  // namespace twml
