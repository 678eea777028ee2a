// What belongs to one process. A child of fork() has the memory of its parent, but none of its
// threads: locks may be held for ever, work may be half done, and the queues of io_uring are shared
// with the parent.
#ifndef TWML_CORE_FORK_H_
#define TWML_CORE_FORK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace twml {

// A number that is another one in a child of fork().
int64_t ForkNumber() noexcept;

// Deletes an object in the process that has made it. In a child the object stays in memory, because
// to destroy it would wait for threads that are not there, or would end what the parent uses.
class InOwnProcess {
 public:
  template <class T>
  void operator()(T* object) const {
    if (number_ == ForkNumber()) delete object;
  }

 private:
  int64_t number_ = ForkNumber();
};

template <class T>
using OwnedByProcess = std::unique_ptr<T, InOwnProcess>;

// An object of which each process has its own: a child makes a new one at its first use. Any number
// of threads may use it, and none waits for another one.
template <class T>
class PerProcess {
 public:
  PerProcess() = default;
  ~PerProcess() {
    Node* const node = node_.load();
    if (node != nullptr && node->number == ForkNumber()) delete node;
  }
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  // The object of this process, which make() returns as a std::unique_ptr if there is none yet. If
  // several threads make one, the first one stays.
  template <class Make>
  T& Get(const Make& make) const {
    Node* node = node_.load(std::memory_order_acquire);
    if (node != nullptr && node->number == ForkNumber()) return *node->object;
    std::unique_ptr<Node> made(new Node{ForkNumber(), make()});
    if (!node_.compare_exchange_strong(node, made.get(), std::memory_order_acq_rel)) {
      return *node->object;
    }
    return *made.release()->object;  // the parent's object stays in memory
  }
  T& Get() const {
    return Get([] { return std::make_unique<T>(); });
  }

 private:
  struct Node {
    const int64_t number;
    const std::unique_ptr<T> object;
  };

  mutable std::atomic<Node*> node_{nullptr};
};

}  // namespace twml

#endif  // TWML_CORE_FORK_H_
