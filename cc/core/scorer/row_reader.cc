#include "cc/core/scorer/row_reader.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

namespace twml::scorer {
namespace {

using Clock = std::chrono::steady_clock;

Status ReadError(const FileRead& read, int error) {
  return Invalid(read.file->path(), " cannot be read at the byte ", read.offset, ": ",
                 DescribeError(error));
}

}  // namespace

// A ring and the reads that run in it.
struct RowReader::Worker {
  struct Running {
    int64_t read;
    int64_t done;
    Clock::time_point begin;
  };

  Worker(std::unique_ptr<IoRing> opened, int depth) : ring(std::move(opened)), running(depth) {
    for (int i = depth - 1; i >= 0; --i) idle.push_back(i);
  }

  int in_flight() const { return static_cast<int>(running.size() - idle.size()); }

  void Push(Span<const FileRead> reads, uint64_t tag) {
    const Running& each = running[tag];
    const FileRead& read = reads[each.read];
    ring->Push({read.file->fd(), false, read.offset + each.done, read.bytes - each.done,
                read.buffer + each.done},
               tag);
  }

  Status Read(Span<const FileRead> reads, Clock::duration delay) {
    // Nothing here throws while reads run.
    const FileRead* failed = nullptr;
    int error = 0;
    int64_t next = 0;
    const bool delayed = delay.count() > 0;
    while (next < reads.size() || in_flight() > 0) {
      if (failed != nullptr)
        next = reads.size();  // what runs must end before its buffers are freed
      for (; next < reads.size() && !idle.empty(); ++next) {
        const uint64_t tag = idle.back();
        idle.pop_back();
        running[tag] = {next, 0, delayed ? Clock::now() : Clock::time_point()};
        Push(reads, tag);
      }
      if (in_flight() == 0) break;
      // The last reads are waited for together. Before them, a quarter of the places is filled at
      // once, so that there are fewer system calls.
      const int most = next == reads.size() ? in_flight() : 1 + in_flight() / 4;
      if (ring->SubmitAndWait(most) != 0) {
        std::this_thread::yield();  // the kernel took none of them
        continue;
      }
      ring->ForCompletions([&](uint64_t tag, int result) {
        Running& each = running[tag];
        const FileRead& read = reads[each.read];
        if (result == -EINTR || result == -EAGAIN) return Push(reads, tag);
        const int64_t before = each.done;
        if (result > 0) each.done += result;
        if (each.done < read.least) {  // the rest begins at a multiple of the alignment
          each.done -= each.done % read.file->alignment();
          if (each.done > before) return Push(reads, tag);
        }
        if (delayed) std::this_thread::sleep_until(each.begin + delay);
        if (each.done < read.least && failed == nullptr) {
          failed = &read;
          error = result < 0 ? -result : BlockRequest::kEndOfFile;
        }
        idle.push_back(tag);
      });
    }
    return failed == nullptr ? Status() : ReadError(*failed, error);
  }

  std::unique_ptr<IoRing> ring;
  std::vector<Running> running;
  std::vector<uint64_t> idle;
};

RowReader::RowReader(const RowReaderOptions& options) : options_(options) {
  options_.depth = std::clamp(options_.depth, 1, 4096);
  auto worker = Take();
  options_.use_io_uring = worker != nullptr;
  if (worker != nullptr) Return(std::move(worker));
}

RowReader::~RowReader() = default;

std::unique_ptr<RowReader::Worker> RowReader::Take() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!options_.use_io_uring) return nullptr;
    if (!free_.empty()) {
      auto worker = std::move(free_.back());
      free_.pop_back();
      return worker;
    }
  }
  if (auto ring = IoRing::Open(options_.depth)) {
    return std::make_unique<Worker>(std::move(ring), options_.depth);
  }
  return nullptr;
}

void RowReader::Return(std::unique_ptr<Worker> worker) {
  std::lock_guard<std::mutex> lock(mu_);
  free_.push_back(std::move(worker));
}

Status RowReader::Read(Span<const FileRead> reads) {
  if (reads.empty()) return Status();
  auto worker = Take();
  if (worker == nullptr) return ReadWithThreads(reads);
  const Status status = worker->Read(reads, std::chrono::nanoseconds(options_.delay_nanoseconds));
  Return(std::move(worker));
  return status;
}

Status RowReader::ReadWithThreads(Span<const FileRead> reads) {
  // What the requests refer to is not left before they are done, whatever is thrown.
  struct Running {
    ~Running() { Wait(); }
    void Wait() {
      std::unique_lock<std::mutex> lock(mu);
      changed.wait(lock, [this] { return left == 0; });
    }
    std::mutex mu;
    std::condition_variable changed;
    int64_t left = 0;
    const FileRead* failed = nullptr;
    int error = 0;
  } running;
  const auto delay = std::chrono::nanoseconds(options_.delay_nanoseconds);
  for (const FileRead& read : reads) {
    BlockIo& threads = read.file->threads(options_.depth);
    BlockRequest request;
    request.offset = read.offset;
    request.bytes = read.least;
    if (read.file->direct()) request.bytes = read.bytes;
    request.buffer = read.buffer;
    request.done = [&running, &read, delay, begin = Clock::now()](int error) {
      if (delay.count() > 0) std::this_thread::sleep_until(begin + delay);
      std::lock_guard<std::mutex> lock(running.mu);
      // The last part of a file may be shorter than the alignment. If it is even shorter than
      // `least`, the file was cut, which NpyRowFile::CheckUnchanged finds.
      const bool at_end = error == BlockRequest::kEndOfFile && read.least < read.bytes;
      if (error != 0 && !at_end && running.failed == nullptr) {
        running.failed = &read;
        running.error = error;
      }
      if (--running.left == 0) running.changed.notify_one();
    };
    {
      std::lock_guard<std::mutex> lock(running.mu);
      ++running.left;
    }
    try {
      threads.Submit(std::move(request), false);
    } catch (...) {
      std::lock_guard<std::mutex> lock(running.mu);
      --running.left;
      throw;
    }
  }
  running.Wait();
  return running.failed == nullptr ? Status() : ReadError(*running.failed, running.error);
}

}  // namespace twml::scorer
