#include "cc/tf/kernels/message_hub.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/tf/kernels/sockets.h"

namespace twml {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kMagic = 0x31676d6c6d7774;     // "twmlmg1"
constexpr int64_t kMaxBytes = int64_t{1} << 36;  // of a part
constexpr std::chrono::seconds kHandshakeTime{10};
constexpr double kMaxSeconds = 1e9;
constexpr size_t kMaxUnknown = 64;  // connections that have not shown the secret
constexpr size_t kMaxSteps = 16;    // of a session with messages that no op has received
struct Greeting {
  int64_t magic, secret, session;
};
struct Header {
  int64_t step, number, parts;  // followed by the number of bytes of each part
};

absl::Status Lost(const char* what) {
  return absl::UnavailableError(absl::StrCat("the connection for messages ", what));
}

absl::Status NotAwaited() {
  return absl::CancelledError("the step that waits for a message was cancelled");
}

template <class T>
iovec BufferOf(T* value) {
  return {value, sizeof(T)};
}

void AddBuffers(const Message& message, std::vector<iovec>* buffers) {
  for (const Tensor& part : message) buffers->push_back({part.data(), part.TotalBytes()});
}

// Whether the system has given a thread, which runs `body` to its end.
template <class Body>
bool StartThread(Body body) {
  try {
    std::thread(std::move(body)).detach();
    return true;
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  return false;
}

bool Contains(const std::deque<int64_t>& steps, int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

}  // namespace

MessageHub::Socket::~Socket() { close(descriptor); }

MessageHub& MessageHub::OfProcess() {
  static auto* hub = new MessageHub;
  return *hub;
}

absl::Status MessageHub::Listen(const std::string& host, int64_t* port, int64_t* secret) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (port_ == 0) {
    const int listener = ListenOn(host);
    const int64_t found = listener < 0 ? 0 : PortOf(listener);
    if (found == 0) {
      const char* why = std::strerror(errno);
      if (listener >= 0) close(listener);
      return absl::UnavailableError(absl::StrCat("no port for messages on ", host, ": ", why));
    }
    std::random_device random;
    secret_ = static_cast<int64_t>(uint64_t{random()} << 32 | random());
    if (!StartThread([this, listener] { Accept(listener); })) {
      close(listener);
      return absl::ResourceExhaustedError("no thread for the port for messages");
    }
    port_ = found;
  }
  *port = port_;
  *secret = secret_;
  return absl::OkStatus();
}

void MessageHub::Accept(int listener) {
  using Clock = std::chrono::steady_clock;
  struct Unknown {
    std::shared_ptr<Socket> socket;
    Clock::time_point end;
    Greeting greeting{};
    size_t bytes = 0;
  };
  std::deque<Unknown> unknown;  // the oldest first
  std::vector<pollfd> polled;

  // Whether more of the greeting is to come.
  const auto advance = [this](Unknown* peer) {
    char* const at = reinterpret_cast<char*>(&peer->greeting) + peer->bytes;
    const auto n = recv(peer->socket->descriptor, at, sizeof(Greeting) - peer->bytes, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    peer->bytes += n;
    if (n == 0 || peer->bytes < sizeof(Greeting)) return n > 0;
    const Greeting& greeting = peer->greeting;
    if (greeting.magic == kMagic && greeting.secret == secret_) {
      StartThread(
          [this, session = greeting.session, socket = peer->socket] { Serve(session, socket); });
    }
    return false;
  };
  const auto next = [&] {
    polled.assign(1, {listener, POLLIN, 0});
    for (const Unknown& peer : unknown) polled.push_back({peer.socket->descriptor, POLLIN, 0});
    int wait = -1;
    if (!unknown.empty()) {
      const auto left = unknown.front().end - Clock::now();
      wait =
          1 + std::max<int>(0, std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
    }
    if (poll(polled.data(), polled.size(), wait) < 0) return;
    std::deque<Unknown> rest;
    for (size_t i = 0; i < unknown.size(); ++i) {
      const bool stays = polled[i + 1].revents != 0 ? advance(&unknown[i]) : true;
      if (stays && Clock::now() < unknown[i].end) rest.push_back(std::move(unknown[i]));
    }
    unknown = std::move(rest);
    if (polled[0].revents == 0) return;
    const int descriptor = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const bool exhausted = descriptor < 0 && errno != EINTR && errno != EAGAIN &&
                           errno != EWOULDBLOCK && errno != ECONNABORTED;
    if (descriptor >= 0) {
      unknown.push_back({std::make_shared<Socket>(descriptor), Clock::now() + kHandshakeTime});
    } else if (exhausted && unknown.empty()) {
      usleep(10000);  // no descriptors are left
    }
    // A legitimate peer shows the secret at once, so the oldest connection is closed first.
    if (unknown.size() > kMaxUnknown || (exhausted && !unknown.empty())) unknown.pop_front();
  };
  while (true) {
    try {
      next();
    } catch (const std::bad_alloc&) {
      unknown.clear();
    }
  }
}

void MessageHub::Serve(int64_t session, const std::shared_ptr<Socket>& socket) {
  try {
    SetOptions(socket->descriptor);
    Open(session, socket);
    if (WriteAll(socket->descriptor, {BufferOf(&session)})) Read(session, socket);
  } catch (const std::bad_alloc&) {  // the peer gets an error, and so do the calls that wait for it
  }
  Close(session);
}

absl::Status MessageHub::Connect(const std::string& host, int64_t port, int64_t secret,
                                 int64_t session, double seconds) {
  if (!(seconds > 0 && seconds <= kMaxSeconds)) {  // also of a NaN
    return absl::InvalidArgumentError(
        absl::StrCat("seconds must be more than 0 and at most ", kMaxSeconds, ", got ", seconds));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (port_ != 0 && port_ == port && secret_ == secret) {
      sessions_[session] = {};
      return absl::OkStatus();
    }
  }
  const Addresses found = Resolve(host, port);
  if (found == nullptr)
    return absl::UnavailableError(absl::StrCat("no address of the host ", host));
  const int descriptor = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return Lost("has no socket");
  auto peer = std::make_shared<Socket>(descriptor);
  SetTimeout(descriptor, seconds);
  Greeting greeting{kMagic, secret, session};
  int64_t answer = 0;
  if (connect(descriptor, found->ai_addr, found->ai_addrlen) != 0 ||
      !WriteAll(descriptor, {BufferOf(&greeting)}) || !ReadAll(descriptor, {BufferOf(&answer)}) ||
      answer != session) {
    return absl::UnavailableError(absl::StrCat("no connection for messages to ", host, ":", port));
  }
  SetOptions(descriptor);
  SetTimeout(descriptor, 0);
  Open(session, peer);
  const auto read = [this, session, peer] {
    try {
      Read(session, peer);
    } catch (const std::bad_alloc&) {
    }
    Close(session);
  };
  if (!StartThread(read)) {
    Close(session);
    return absl::ResourceExhaustedError("no thread for a connection for messages");
  }
  return absl::OkStatus();
}

void MessageHub::Open(int64_t session, std::shared_ptr<Socket> socket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sessions_[session].socket = std::move(socket);
}

void MessageHub::Read(int64_t session, const std::shared_ptr<Socket>& socket) {
  Header header{};
  std::vector<int64_t> sizes;
  while (ReadAll(socket->descriptor, {BufferOf(&header)})) {
    if (header.parts < 0 || header.parts > kMaxParts) return;
    sizes.resize(header.parts);
    const auto bytes = static_cast<size_t>(header.parts) * sizeof(int64_t);
    if (!ReadAll(socket->descriptor, {{sizes.data(), bytes}})) return;
    Message message;
    for (const int64_t size : sizes) {
      if (size < 0 || size > kMaxBytes) return;
      message.emplace_back(tensorflow::DT_UINT8, TensorShape({size}));
      if (!message.back().IsInitialized()) return;
    }
    std::vector<iovec> buffers;
    AddBuffers(message, &buffers);
    if (!ReadAll(socket->descriptor, std::move(buffers))) return;
    Deliver({session, header.step, header.number}, std::move(message));
  }
}

void MessageHub::Close(int64_t session) {
  std::vector<Done> failed;
  const MessageKey first{session, INT64_MIN, INT64_MIN};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sessions_.erase(session);
    auto arrived = arrived_.lower_bound(first);
    while (arrived != arrived_.end() && arrived->first.session == session) {
      arrived = arrived_.erase(arrived);
    }
    auto waiting = waiting_.lower_bound(first);
    while (waiting != waiting_.end() && waiting->first.session == session) {
      failed.push_back(std::move(waiting->second));
      waiting = waiting_.erase(waiting);
    }
  }
  for (const Done& done : failed) done(Lost("has ended"), {});
}

void MessageHub::Deliver(const MessageKey& key, Message message) {
  Done done;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto waiting = waiting_.find(key);
    if (waiting == waiting_.end()) {
      Keep(key, std::move(message));
      return;
    }
    done = std::move(waiting->second);
    waiting_.erase(waiting);
  }
  done(absl::OkStatus(), std::move(message));
}

void MessageHub::Keep(const MessageKey& key, Message message) {
  const auto found = sessions_.find(key.session);
  if (found == sessions_.end() || Contains(found->second.cancelled, key.step)) return;
  arrived_[key].push_back(std::move(message));
  std::deque<int64_t>& steps = found->second.steps;
  if (Contains(steps, key.step)) return;
  steps.push_back(key.step);
  // A worker does one step after the other, so the oldest was cancelled where it was to be
  // received.
  if (steps.size() > kMaxSteps) Forget(key.session, steps.front());
}

void MessageHub::Forget(int64_t session, int64_t step) {
  auto at = arrived_.lower_bound({session, step, INT64_MIN});
  while (at != arrived_.end() && at->first.session == session && at->first.step == step) {
    at = arrived_.erase(at);
  }
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  std::deque<int64_t>& steps = found->second.steps;
  steps.erase(std::remove(steps.begin(), steps.end(), step), steps.end());
}

void MessageHub::DropLater(const MessageKey& key) {
  Forget(key.session, key.step);
  const auto found = sessions_.find(key.session);
  if (found == sessions_.end() || Contains(found->second.cancelled, key.step)) return;
  found->second.cancelled.push_back(key.step);
  if (found->second.cancelled.size() > kMaxSteps) found->second.cancelled.pop_front();
}

absl::Status MessageHub::Send(const MessageKey& key, const Message& message) {
  std::shared_ptr<Socket> socket;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto session = sessions_.find(key.session);
    if (session == sessions_.end()) return Lost("has ended");
    socket = session->second.socket;
  }
  if (socket == nullptr) {
    Deliver(key, message);
    return absl::OkStatus();
  }
  Header header{key.step, key.number, static_cast<int64_t>(message.size())};
  std::vector<int64_t> sizes;
  for (const Tensor& part : message) sizes.push_back(static_cast<int64_t>(part.TotalBytes()));
  std::vector<iovec> buffers{BufferOf(&header), {sizes.data(), sizes.size() * sizeof(int64_t)}};
  AddBuffers(message, &buffers);
  const std::lock_guard<std::mutex> lock(socket->sending);
  return WriteAll(socket->descriptor, std::move(buffers)) ? absl::OkStatus() : Lost("has ended");
}

void MessageHub::Receive(const MessageKey& key, const std::function<bool()>& wait, Done done) {
  Message message;
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto arrived = arrived_.find(key);
    if (arrived != arrived_.end()) {
      message = std::move(arrived->second.front());
      arrived->second.pop_front();
      if (arrived->second.empty()) {
        const auto next = arrived_.erase(arrived);
        const auto is_of_step = [&](auto at) {
          return at->first.session == key.session && at->first.step == key.step;
        };
        const bool has_more = (next != arrived_.end() && is_of_step(next)) ||
                              (next != arrived_.begin() && is_of_step(std::prev(next)));
        if (!has_more) Forget(key.session, key.step);
      }
    } else if (sessions_.count(key.session) == 0) {
      status = Lost("has ended");
    } else if (waiting_.count(key) != 0) {
      status = absl::InternalError("two ops wait for the same message");
    } else if (!wait()) {
      DropLater(key);
      status = NotAwaited();
    } else {
      waiting_[key] = std::move(done);
      return;
    }
  }
  done(status, std::move(message));
}

void MessageHub::Cancel(const MessageKey& key) {
  Done done;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    DropLater(key);
    const auto waiting = waiting_.find(key);
    if (waiting == waiting_.end()) return;
    done = std::move(waiting->second);
    waiting_.erase(waiting);
  }
  done(NotAwaited(), {});
}

}  // namespace twml
