// Measures the random reads per second of a file's device.
//
//   device_reads FILE BLOCK_BYTES DEPTH THREADS SECONDS DELAY_NANOSECONDS
//
// Each thread keeps DEPTH / THREADS reads running, past the page cache, at random multiples of
// BLOCK_BYTES. With a delay, a read takes at least that long, as in the injected latencies of
// benchmarks/scoring_from_files.py. Prints one line of JSON.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/io_ring.h"

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

struct Setting {
  int fd;
  int64_t block, blocks;
  int depth;
  double seconds;
  Clock::duration delay;
};

// Reads until the time is over; returns the number of reads.
int64_t Read(const Setting& setting, uint64_t seed) {
  const auto ring = twml::IoRing::Open(setting.depth);
  if (ring == nullptr) Fail("io_uring is not available");
  std::mt19937_64 random(seed);
  const auto bytes = static_cast<size_t>(setting.block * setting.depth);
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(4096, bytes + 4096),
                                                      std::free);
  std::vector<Clock::time_point> begins(setting.depth);
  int64_t done = 0;
  int running = 0;
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(setting.seconds));
  const auto push = [&](uint64_t tag) {
    const auto block = static_cast<int64_t>(random() % static_cast<uint64_t>(setting.blocks));
    begins[tag] = Clock::now();
    ring->Push({setting.fd, false, block * setting.block, setting.block,
                static_cast<char*>(memory.get()) + tag * setting.block},
               tag);
    ++running;
  };
  for (int tag = 0; tag < setting.depth; ++tag) push(tag);
  while (running > 0) {
    if (ring->SubmitAndWait(1 + running / 4) != 0) Fail("io_uring_enter failed");
    ring->ForCompletions([&](uint64_t tag, int result) {
      if (result != setting.block) Fail("a read failed");
      if (setting.delay.count() > 0) std::this_thread::sleep_until(begins[tag] + setting.delay);
      --running;
      if (Clock::now() > end) return;
      ++done;
      push(tag);
    });
  }
  return done;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) Fail("FILE BLOCK_BYTES DEPTH THREADS SECONDS DELAY_NANOSECONDS");
  Setting setting;
  const int threads = std::atoi(argv[4]);
  setting.fd = open(argv[1], O_RDONLY | O_DIRECT);
  struct stat info;
  if (setting.fd < 0 || fstat(setting.fd, &info) != 0) Fail("the file cannot be opened");
  setting.block = std::atoll(argv[2]);
  setting.blocks = info.st_size / setting.block;
  setting.depth = std::max(1, std::atoi(argv[3]) / threads);
  setting.seconds = std::atof(argv[5]);
  setting.delay = std::chrono::nanoseconds(std::atoll(argv[6]));
  std::atomic<int64_t> reads{0};
  std::vector<std::thread> readers;
  const auto begin = Clock::now();
  for (int i = 0; i < threads; ++i) {
    readers.emplace_back([&, i] { reads += Read(setting, static_cast<uint64_t>(i) + 1); });
  }
  for (std::thread& reader : readers) reader.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto in_seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  std::printf("{\"reads_per_second\": %.1f, \"cpu_seconds_per_read\": %.3g}\n",
              static_cast<double>(reads) / seconds,
              (in_seconds(usage.ru_utime) + in_seconds(usage.ru_stime)) /
                  static_cast<double>(std::max<int64_t>(1, reads)));
  close(setting.fd);
  return 0;
}
