// Messages between the worker and the servers of hybrid training, outside of TensorFlow's gRPC.
#ifndef TWML_TF_KERNELS_MESSAGE_HUB_H_
#define TWML_TF_KERNELS_MESSAGE_HUB_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"

namespace twml {

// What a message is for. A step id identifies a call of a function, in all processes that take part
// in it. A number is that of one message in the graph of the function.
struct MessageKey {
  int64_t session, step, number;
  bool operator<(const MessageKey& o) const {
    return std::tie(session, step, number) < std::tie(o.session, o.step, o.number);
  }
};

// Parts, each uint8 [bytes].
using Message = std::vector<tensorflow::Tensor>;
constexpr int64_t kMaxParts = 1 << 16;

// The messages that this process has sent to itself or received, and those that it waits for.
//
// A session is a connection between two processes, or of a process with itself. Messages of a
// process to itself are passed on without a copy. All others go through the socket of the session,
// which one thread reads. If a socket is closed, all that wait for its messages get an error.
//
// Connections that have not shown the secret share one thread, and their number, their time and
// what is read of them are bounded. Messages that no op receives are kept for few steps of a
// session.
class MessageHub {
 public:
  using Done = std::function<void(const absl::Status&, Message)>;

  // The hub of this process. It is never deleted, since its threads may outlive main().
  static MessageHub& OfProcess();

  // Listens on a port of a host, in the first call. A peer must present the secret. Of a name that
  // is not "localhost" but is one of the loopback, or of no address of this machine (behind a
  // proxy), it listens on all interfaces.
  absl::Status Listen(const std::string& host, int64_t* port, int64_t* secret);

  // Opens a session with the process that listens at an address. Fails after `seconds`, in (0,
  // 1e9].
  absl::Status Connect(const std::string& host, int64_t port, int64_t secret, int64_t session,
                       double seconds);

  // Sends at most kMaxParts parts. Waits while the socket is full, but not for the receiver.
  absl::Status Send(const MessageKey& key, const Message& message);

  // Calls `done` with a message as soon as it is here. If it is not here yet,
  // `wait` is called first, and the result is an error if that returns false.
  void Receive(const MessageKey& key, const std::function<bool()>& wait, Done done);

  // Lets a call of Receive that still waits fail. Messages of its step are no longer kept.
  void Cancel(const MessageKey& key);

 private:
  struct Socket {
    explicit Socket(int descriptor) : descriptor(descriptor) {}
    ~Socket();
    const int descriptor;
    std::mutex sending;
  };
  struct Session {
    std::shared_ptr<Socket> socket;  // null: of this process with itself
    std::deque<int64_t> steps;       // with messages that have arrived, by their age
    std::deque<int64_t> cancelled;   // steps, by their age; their messages are dropped
  };

  MessageHub() = default;
  void Accept(int listener);
  void Serve(int64_t session, const std::shared_ptr<Socket>& socket);
  void Open(int64_t session, std::shared_ptr<Socket> socket);
  void Read(int64_t session, const std::shared_ptr<Socket>& socket);
  void Close(int64_t session);
  void Deliver(const MessageKey& key, Message message);
  // The following are called with the lock.
  void Keep(const MessageKey& key, Message message);
  void Forget(int64_t session, int64_t step);
  void DropLater(const MessageKey& key);

  std::mutex mutex_;
  int64_t port_ = 0, secret_ = 0;
  std::map<int64_t, Session> sessions_;
  std::map<MessageKey, std::deque<Message>> arrived_;
  std::map<MessageKey, Done> waiting_;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_MESSAGE_HUB_H_
