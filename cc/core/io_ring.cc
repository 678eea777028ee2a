#include "cc/core/io_ring.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#define TWML_HAS_IO_URING 1
#endif

namespace twml {

#ifdef TWML_HAS_IO_URING

struct IoRing::Queues {
  unsigned *submission_tail, *submission_mask, *submission_array;
  unsigned *completion_head, *completion_tail, *completion_mask;
  io_uring_cqe* completions;
  io_uring_sqe* entries;
};

constexpr size_t kParts = 3;  // that a ring maps

IoRing::IoRing() : queues_(new Queues()) { maps_.reserve(kParts); }

IoRing::~IoRing() {
  for (const auto& [address, size] : maps_) munmap(address, size);
  if (fd_ >= 0) close(fd_);
}

char* IoRing::MapPart(size_t bytes, int64_t offset) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                             static_cast<off_t>(offset));
  if (address == MAP_FAILED) return nullptr;
  maps_.emplace_back(address, bytes);
  return static_cast<char*>(address);
}

std::unique_ptr<IoRing> IoRing::Open(int depth) {
  io_uring_params params;
  std::memset(&params, 0, sizeof(params));
  // What closes and unmaps is made first, so that no failed allocation leaves anything open.
  std::unique_ptr<IoRing> ring(new IoRing());
  ring->fd_ = static_cast<int>(syscall(SYS_io_uring_setup, depth, &params));
  if (ring->fd_ < 0) return nullptr;
  if ((params.features & IORING_FEAT_RW_CUR_POS) == 0) return nullptr;
  const size_t submission_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const size_t completion_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  char* const submission = ring->MapPart(submission_bytes, IORING_OFF_SQ_RING);
  char* const completion = ring->MapPart(completion_bytes, IORING_OFF_CQ_RING);
  char* const entries = ring->MapPart(params.sq_entries * sizeof(io_uring_sqe),
                                      static_cast<int64_t>(IORING_OFF_SQES));
  if (submission == nullptr || completion == nullptr || entries == nullptr) return nullptr;
  const auto number = [](char* begin, unsigned offset) {
    return reinterpret_cast<unsigned*>(begin + offset);
  };
  *ring->queues_ = {number(submission, params.sq_off.tail),
                    number(submission, params.sq_off.ring_mask),
                    number(submission, params.sq_off.array),
                    number(completion, params.cq_off.head),
                    number(completion, params.cq_off.tail),
                    number(completion, params.cq_off.ring_mask),
                    reinterpret_cast<io_uring_cqe*>(completion + params.cq_off.cqes),
                    reinterpret_cast<io_uring_sqe*>(entries)};
  return ring;
}

void IoRing::Push(const Operation& operation, uint64_t tag) {
  const unsigned tail = *queues_->submission_tail;
  const unsigned at = tail & *queues_->submission_mask;
  io_uring_sqe& entry = queues_->entries[at];
  std::memset(&entry, 0, sizeof(entry));
  entry.opcode = operation.write ? IORING_OP_WRITE : IORING_OP_READ;
  entry.fd = operation.fd;
  entry.addr = reinterpret_cast<uint64_t>(operation.buffer);
  entry.len = static_cast<uint32_t>(std::min<int64_t>(operation.bytes, 1 << 30));
  entry.off = static_cast<uint64_t>(operation.offset);
  entry.user_data = tag;
  queues_->submission_array[at] = at;
  __atomic_store_n(queues_->submission_tail, tail + 1, __ATOMIC_RELEASE);
  ++pushed_;
}

int IoRing::SubmitAndWait(int completions) {
  const auto n =
      syscall(SYS_io_uring_enter, fd_, pushed_, completions, IORING_ENTER_GETEVENTS, nullptr, 0);
  if (n < 0) return errno == EINTR || errno == EAGAIN || errno == EBUSY ? 0 : errno;
  pushed_ -= static_cast<unsigned>(n);
  return 0;
}

uint64_t IoRing::TakeLast() {
  const unsigned last = *queues_->submission_tail - 1;
  const unsigned at = queues_->submission_array[last & *queues_->submission_mask];
  __atomic_store_n(queues_->submission_tail, last, __ATOMIC_RELEASE);
  --pushed_;
  return queues_->entries[at].user_data;
}

bool IoRing::TakeCompletion(uint64_t* tag, int* result) {
  const unsigned head = *queues_->completion_head;
  if (head == __atomic_load_n(queues_->completion_tail, __ATOMIC_ACQUIRE)) return false;
  const io_uring_cqe& completion = queues_->completions[head & *queues_->completion_mask];
  *tag = completion.user_data;
  *result = completion.res;
  __atomic_store_n(queues_->completion_head, head + 1, __ATOMIC_RELEASE);
  return true;
}

#else

struct IoRing::Queues {};

IoRing::IoRing() = default;
IoRing::~IoRing() = default;
char* IoRing::MapPart(size_t, int64_t) { return nullptr; }
std::unique_ptr<IoRing> IoRing::Open(int) { return nullptr; }
void IoRing::Push(const Operation&, uint64_t) {}
int IoRing::SubmitAndWait(int) { return ENOSYS; }
uint64_t IoRing::TakeLast() { return 0; }
bool IoRing::TakeCompletion(uint64_t*, int*) { return false; }

#endif

}  // namespace twml
